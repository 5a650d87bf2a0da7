"""State per key and namespace, such as a window.

A namespace is bytes. The current key is a tuple of a key and a namespace. Its entries are
stored among those of the key, see `state/table.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.state import ListState, ReducingState, State
from holdfast.errors import StateAccessError
from holdfast.serde.keys import framed
from holdfast.state.value import AggregatingValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.serde.key_shapes import KeyShape
    from holdfast.serde.keys import KeyEncoder
    from holdfast.state.table import CurrentKey, StateTable


def merge_namespaces(
    state: State, enter: Callable[[Any], None], target: Any, sources: Iterable[Any]
) -> None:
    """Merge the state of `sources` into `target`, in order, and clear the sources.

    Args:
        state: Handle to a list, reducing or aggregating state.
        enter: Sets the current key of the state.
        target: A key with a namespace.
        sources: The same key with other namespaces.

    Raises:
        StateAccessError: States of this kind cannot be merged.
    """
    found: Any
    add: Callable[[Any], None]
    for source in sources:
        enter(source)
        match state:
            case ListState():
                found, add = state.get(), state.add_all
            case ReducingState():
                found, add = state.get(), state.add
            case AggregatingValue():
                found, add = state.accumulator(), state.merge
            case _:
                raise StateAccessError(
                    "only list, reducing and aggregating states can be merged: a value or a map "
                    "does not define how to combine two of them"
                )
        state.clear()
        enter(target)
        if found is not None:
            add(found)


class NamespacedKeyEncoder:
    """Encodes tuples of a key and a namespace; see `KeyEncoder`."""

    __slots__ = ("_encoder",)

    def __init__(self, encoder: KeyEncoder) -> None:
        """Encode keys with `encoder`."""
        self._encoder = encoder

    @property
    def shape(self) -> KeyShape | None:
        """Common type of all keys; None before the first key."""
        return self._encoder.shape

    def encode(self, prefix: bytes, key: tuple[Any, bytes]) -> bytes:
        """Prefix of the store keys of one key and namespace."""
        return self._encoder.encode(prefix, key[0])[:-1] + framed(key[1])

    def encode_all(self, prefix: bytes, keys: Sequence[tuple[Any, bytes]]) -> list[bytes]:
        """Prefixes of the store keys of many keys and namespaces, in order."""
        beginnings = self._encoder.encode_all(prefix, [key for key, _ in keys])
        namespaces = {namespace: framed(namespace) for namespace in {key[1] for key in keys}}
        # A prefix ends with the void namespace.
        return [
            beginning[:-1] + namespaces[key[1]]
            for beginning, key in zip(beginnings, keys, strict=True)
        ]


class StateScope:
    """States that share a current key: a key, or a key and a namespace.

    In the void namespace the current key is the key. Elsewhere it is a tuple of the key and
    the bytes of the namespace, such as a window.
    """

    __slots__ = ("current", "encoder", "states", "tables")

    def __init__(self, current: CurrentKey, encoder: KeyEncoder | NamespacedKeyEncoder) -> None:
        """No states yet."""
        self.current = current
        self.encoder = encoder
        self.states: dict[str, tuple[StateDescriptor, State]] = {}
        self.tables: list[StateTable] = []
        """The tables behind the states."""
