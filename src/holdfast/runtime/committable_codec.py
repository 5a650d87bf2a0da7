"""How the committables of a sink become bytes in a checkpoint, and come back.

They are read by whoever goes on from the checkpoint. So they are pickled only if the sink
says so: reading pickled bytes runs whatever code is in them.
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
    """Codec of what the writers of a sink give out, besides rows that they stage.

    Raises:
        TypeDeclarationError: The declared type cannot be held exactly.
    """
    if sink.committable_type is None:
        return _UNDECLARED
    try:
        codec = codec_for(sink.committable_type)
    except (StateDescriptorError, TypeDeclarationError) as error:
        raise TypeDeclarationError(
            f"the type of what sink {sink.name!r} puts into checkpoints cannot be used: {error}"
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
"""Of sinks whose committables are staged rows, which need no type."""
