"""Giving the entries of a state times, or taking them away, when its descriptor changes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.state.list_table import pack_chunk, unpack_chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.state.store import StateStore

ENTRIES_AT_ONCE: Final = 50_000
"""Most entries that are read before they are written again."""


def migrate(
    store: StateStore,
    kind: str,
    old: bytes,
    new: bytes,
    changed: Callable[[bytes], bytes],
) -> None:
    """Move all entries of one form of a state to the other.

    An entry that the new form has already stays as it is; a chunk of a list goes before it.

    Args:
        store: Where they are.
        kind: Kind of the state.
        old: State id of the form that is given up, as keys begin with it.
        new: State id of the other form.
        changed: Gives a stored value its new form.
    """
    place = old
    while entries := list(islice(store.scan(old, place), ENTRIES_AT_ONCE)):
        keys = [new + key[2:] for key, _ in entries]
        writes: list[tuple[bytes, bytes | None]] = []
        for (gone, value), key, there in zip(entries, keys, store.get_many(keys), strict=True):
            writes.append((gone, None))
            if there is None:
                writes.append((key, changed(value)))
            elif kind == "list":
                writes.append((key, pack_chunk(unpack_chunk(changed(value)) + unpack_chunk(there))))
        store.write(writes)
        place = entries[-1][0] + b"\x00"
