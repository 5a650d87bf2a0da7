"""Gates: the driver pauses sources between two epochs.

Spark asks a source for its next offset in a process of its own, beside the driver. Three files
are shared by both:

    <gate>            the driver: the source must wait
    <gate>.refused    the source: it had to wait when it was last asked
    <gate>.ended      the source: it had nothing more to read when it was last asked
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True)
class Gate:
    """The gate of one source."""

    path: str

    @property
    def is_closed(self) -> bool:
        """Whether the source must wait."""
        return Path(self.path).exists()

    @property
    def has_refused(self) -> bool:
        """Whether the source had to wait when it was last asked."""
        return self._refused.exists()

    @property
    def has_ended(self) -> bool:
        """Whether the source had nothing more to read when it was last asked."""
        return self._ended.exists()

    def set_closed(self, closed: bool) -> None:
        """Let the source wait, or not; the driver calls it."""
        _set(Path(self.path), closed)

    def note(self, *, refused: bool = False, ended: bool = False) -> None:
        """Note what the source has answered; its process calls it."""
        _set(self._refused, refused)
        _set(self._ended, ended)

    @property
    def _refused(self) -> Path:
        return Path(f"{self.path}.refused")

    @property
    def _ended(self) -> Path:
        return Path(f"{self.path}.ended")


class Gates:
    """The gates of a job's aligned sources, by uid."""

    def __init__(self, gates: Mapping[str, Gate] | None = None) -> None:
        """All gates are open."""
        self._gates = dict(gates or {})

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._gates)

    def get(self, uid: str) -> Gate | None:
        """The gate of a source; None if it never waits."""
        return self._gates.get(uid)

    def reset(self) -> None:
        """Open all gates, and forget what sources have answered: they are asked again."""
        self.close_only(())
        for gate in self._gates.values():
            gate.note()

    def ended(self) -> frozenset[str]:
        """Uids of the sources that had nothing more to read when they were last asked."""
        return frozenset(uid for uid, gate in self._gates.items() if gate.has_ended)

    def refused(self) -> frozenset[str]:
        """Uids of the sources that had to wait when they were last asked."""
        return frozenset(uid for uid, gate in self._gates.items() if gate.has_refused)

    def close_only(self, uids: Collection[str]) -> None:
        """Close the gates of these sources, and open the others."""
        for uid, gate in self._gates.items():
            gate.set_closed(uid in uids)


def _set(path: Path, there: bool) -> None:
    if there == path.exists():
        return
    if there:
        path.touch(mode=0o600)
    else:
        path.unlink(missing_ok=True)
