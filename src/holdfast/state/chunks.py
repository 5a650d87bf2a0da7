"""Numbers for the chunks of list states: growing, and unique within a store."""

from __future__ import annotations


class ChunkNumbers:
    """Numbers drawn in one epoch; all of them after those of earlier epochs.

    epoch (8 bytes, big-endian) | count within the epoch (4 bytes, big-endian)
    """

    __slots__ = ("_count", "_epoch")

    def __init__(self, epoch: int) -> None:
        """Numbers of one epoch."""
        self._epoch = epoch.to_bytes(8, "big")
        self._count = 0

    def next(self) -> bytes:
        """A number after all drawn before."""
        self._count += 1
        return self._epoch + self._count.to_bytes(4, "big")
