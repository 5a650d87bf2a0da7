"""Handles: how a checkpoint names the bytes that it is made of."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class FileHandle(msgspec.Struct, frozen=True, tag="file"):
    """A file in checkpoint storage; it never changes once it is named here."""

    path: str
    """Place below the job's directory in checkpoint storage, with `/` between parts."""
    size: int
    """Length in bytes."""
    checksum: str
    """XXH3-128 of the content, in hexadecimal."""


class InlineHandle(msgspec.Struct, frozen=True, tag="inline"):
    """Bytes that travel within the metadata itself."""

    data: bytes
    """The content."""
    size: int
    """Length in bytes."""


Handle: TypeAlias = FileHandle | InlineHandle
"""Any handle."""


def inline(data: bytes) -> InlineHandle:
    """Handle that holds `data` itself.

    Example:
        >>> inline(b"abc").size
        3
    """
    return InlineHandle(data=data, size=len(data))
