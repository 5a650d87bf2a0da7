"""Elements for several consumers, each of which may change its own."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.runtime.read_columns import Reader
from holdfast.runtime.write_columns import Writer
from holdfast.state.pickling import pickled

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.types import StreamType


def copier(stream: StreamType) -> Callable[[list[Any]], list[Any]]:
    """What copies the elements of a stream; `shared` where nothing could change them."""
    if stream.kind == "object":
        return lambda elements: list(map(pickle.loads, pickled(elements)))
    element = stream.element
    immutable = element is None or (isinstance(element, type) and issubclass(element, tuple))
    if immutable and not any(pa.types.is_nested(field.type) for field in stream.schema):
        return shared
    writer, reader = Writer(stream), Reader(stream)
    return lambda elements: reader.elements(writer.batch(elements))


def shared(elements: list[Any]) -> list[Any]:
    """The elements themselves."""
    return elements
