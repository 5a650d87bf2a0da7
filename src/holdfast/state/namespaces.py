"""Keys of state that is kept per key and namespace, such as a window's.

A namespace is bytes. The current key of such state is the tuple of a key and a namespace;
its entries lie among those of the key, see `state/table.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.state import ListState, ReducingState, State
from holdfast.errors import StateAccessError
from holdfast.serde.keys import varint
from holdfast.state.value import AggregatingValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.serde.key_shapes import KeyShape
    from holdfast.serde.keys import KeyEncoder


def merge_namespaces(
    state: State, enter: Callable[[Any], None], target: Any, sources: Iterable[Any]
) -> None:
    """Add what `sources` hold to `target`, in their order, and clear them.

    Args:
        state: Handle to a list, reducing or aggregating state.
        enter: Sets the current key of the state to one of the others.
        target: A key with a namespace.
        sources: Others, of the same key.

    Raises:
        StateAccessError: A state of this kind does not say how two of them become one.
    """
    for source in sources:
        enter(source)
        match state:
            case ListState():
                elements = state.get()
                state.clear()
                enter(target)
                state.add_all(elements)
            case ReducingState():
                value = state.get()
                state.clear()
                enter(target)
                if value is not None:
                    state.add(value)
            case AggregatingValue():
                accumulator = state.accumulator()
                state.clear()
                enter(target)
                if accumulator is not None:
                    state.merge(accumulator)
            case _:
                raise StateAccessError(
                    "only list, reducing and aggregating states can be merged: a value or a map "
                    "does not say how two of them become one"
                )


class NamespacedKeyEncoder:
    """Encodes tuples of a key and a namespace, as `KeyEncoder` encodes keys."""

    __slots__ = ("_encoder",)

    def __init__(self, encoder: KeyEncoder) -> None:
        """Keys as `encoder` encodes them."""
        self._encoder = encoder

    @property
    def shape(self) -> KeyShape | None:
        """Type that all keys share, or None if there was no key yet."""
        return self._encoder.shape

    def encode(self, prefix: bytes, key: tuple[Any, bytes]) -> bytes:
        """Beginning of the store keys of one key and namespace."""
        return self._encoder.encode(prefix, key[0])[:-1] + _framed(key[1])

    def encode_all(self, prefix: bytes, keys: Sequence[tuple[Any, bytes]]) -> list[bytes]:
        """The same for many."""
        beginnings = self._encoder.encode_all(prefix, [key for key, _ in keys])
        framed = {namespace: _framed(namespace) for namespace in {key[1] for key in keys}}
        # A beginning ends in the void namespace.
        return [
            beginning[:-1] + framed[key[1]] for beginning, key in zip(beginnings, keys, strict=True)
        ]


def _framed(namespace: bytes) -> bytes:
    return varint(len(namespace)) + namespace
