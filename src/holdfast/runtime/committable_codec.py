"""Encodes the committables of a sink for checkpoints, and decodes them.

Every job that starts from the checkpoint reads them. So they are pickled only if the sink
asks for it: unpickling can run any code.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import (
    SinkError,
    StateDescriptorError,
    StateValueError,
    TypeDeclarationError,
)
from holdfast.serde.codec import Codec
from holdfast.serde.factory import codec_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.sinks import Sink


def committable_codec(sink: Sink) -> Codec:
    """Codec of the committables of a sink, except staged rows.

    Raises:
        TypeDeclarationError: The declared type cannot be held exactly.
    """
    if sink.committable_type is None:
        return _UNDECLARED
    try:
        codec = codec_for(sink.committable_type)
    except (StateDescriptorError, TypeDeclarationError) as error:
        raise TypeDeclarationError(
            f"the type of the committables of sink {sink.name!r} cannot be used: {error}"
        ) from None
    return replace(codec, decode=partial(_decode, codec.decode))


def _decode(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return decode(data)
    except StateValueError as error:
        raise SinkError(
            "what the checkpoint holds for it was written with another type of committables or "
            f"transactions ({error}). Go back to that type; change it in a job that starts from a "
            "savepoint, which holds none"
        ) from None


def _refuse(value: Any) -> NoReturn:
    raise SinkError(
        f"a committable of type {type(value).__name__} goes into the checkpoint, and the sink has "
        "no committable_type; set it to the type, as for a state, or to Any to have committables "
        "pickled"
    )


_UNDECLARED = Codec(encode=_refuse, decode=_refuse, check=_refuse, schema={})
"""For sinks whose committables are staged rows, which need no type."""
