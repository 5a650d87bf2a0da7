"""Decodes and encodes many MessagePack values at once."""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

encode_one = msgspec.msgpack.Encoder().encode
"""MessagePack of a value."""


def unpacked(python: Any) -> Callable[[list[bytes]], list[Any]]:
    """Function that decodes a list of separate MessagePack values of a type."""
    decode = msgspec.msgpack.Decoder(GenericAlias(list, (python,))).decode

    def unpack(blobs: list[bytes]) -> list[Any]:
        # Joined as one array, which a single call decodes.
        values: list[Any] = decode(b"\xdd%b%b" % (len(blobs).to_bytes(4, "big"), b"".join(blobs)))
        return values

    return unpack
