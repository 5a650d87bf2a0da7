"""The codec of a state whose type has changed: every value is read as it was written.

A value is turned into one of today's type when it is read, and stored under today's schema
when it is written again. How it tells its schema is in `state/schema_history.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import StateValueError
from holdfast.state.schema_history import HEAD, MARK
from holdfast.state.schema_resolution import schema_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.state.codec_python import Codec
    from holdfast.state.schema_history import SchemaHistory

    Decode = Callable[[bytes], Any]


def evolving(codec: Codec, history: SchemaHistory, readers: Mapping[str | None, Decode]) -> Codec:
    """Codec of values that were written under any schema of a history.

    Args:
        codec: Codec of today's type.
        history: The schemas; the one of `codec` is declared now.
        readers: By the ids of all of them, the first by None: what reads their values.
    """
    first = bytes.fromhex(schema_id(history.first))
    by_id = {bytes.fromhex(name): read for name, read in readers.items() if name is not None}
    by_id[first] = readers[None]
    bare, encode = readers[None], codec.encode

    def decode(data: bytes) -> Any:
        if not data.startswith(MARK):
            return bare(data)
        read = by_id.get(data[2:HEAD])
        if read is None:
            raise StateValueError(
                f"a stored value names the schema {data[2:HEAD].hex()}, which its store does not "
                "know; restore from another checkpoint"
            )
        return read(data[HEAD:])

    if history.now is None:
        head = MARK + first

        def encode_bare(value: Any) -> bytes:
            data = encode(value)
            return head + data if data.startswith(MARK) else data

        own = encode_bare
    else:
        mark = MARK + bytes.fromhex(history.now)

        def encode_marked(value: Any) -> bytes:
            return mark + encode(value)

        own = encode_marked
    return replace(codec, encode=own, decode=decode, canonical=False, reading=None)
