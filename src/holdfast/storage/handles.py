"""Handles: references from a checkpoint to its bytes."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class FileHandle(msgspec.Struct, frozen=True, tag="file"):
    """A file in checkpoint storage; it never changes."""

    path: str
    """Path relative to the job's directory in checkpoint storage, with `/` between parts."""
    size: int
    """Length in bytes."""
    checksum: str
    """XXH3-128 of the content, in hexadecimal."""


class InlineHandle(msgspec.Struct, frozen=True, tag="inline"):
    """Bytes within the metadata itself."""

    data: bytes
    """The content."""
    size: int
    """Length in bytes."""


Handle: TypeAlias = FileHandle | InlineHandle
"""Any handle."""


def inline(data: bytes) -> InlineHandle:
    """Handle that contains `data`.

    Example:
        >>> inline(b"abc").size
        3
    """
    return InlineHandle(data=data, size=len(data))
