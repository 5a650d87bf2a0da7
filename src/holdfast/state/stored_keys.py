"""Lists the keys that have entries in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.serde.key_reader import KEY_AT, length_prefixed
from holdfast.state.store.write_buffer import after_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.store.protocol import StateStore

MANY_ENTRIES: Final = 32


def read_keys(
    store: StateStore, prefix: bytes, start: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Keys with an entry in a state, each once, as canonical bytes.

    Args:
        store: Store to read; no scan stays open.
        prefix: Bytes of the state id.
        start: Position to start at: b"", or that returned by the last call.
        limit: Maximum number of keys.

    Returns:
        The keys, and the position of the next call; None after the last key.
    """
    keys: list[bytes] = []
    place: bytes | None = start
    while place is not None:
        place = _read_run(store.scan(prefix, place), keys, limit)
        if len(keys) >= limit:
            break
    return keys, place


def _read_run(
    entries: Iterator[tuple[bytes, bytes]], keys: list[bytes], limit: int
) -> bytes | None:
    """Append keys up to the first one with many entries; return the position after it."""
    owner, seen = b"", 0
    for store_key, _ in entries:
        if owner and store_key.startswith(owner):
            seen += 1
            if seen < MANY_ENTRIES:
                continue
            return after_prefix(owner)
        key, end = length_prefixed(store_key, KEY_AT)
        owner, seen = store_key[:end], 1
        if len(keys) >= limit:
            # Not at this entry: it may be deleted by then while the key has others.
            return owner
        keys.append(key)
    return None
