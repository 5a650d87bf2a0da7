"""Gates: the driver pauses sources between two epochs.

Spark asks a source for its next offset in a process of its own. The driver and this process share
two files:

    <gate>          exists while the source must wait
    <gate>.ended    the source had nothing more to read when it was last asked
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True)
class Gate:
    """The gate of one source, as seen from both sides."""

    path: str

    @property
    def is_closed(self) -> bool:
        """Whether the source must wait."""
        return Path(self.path).exists()

    @property
    def has_ended(self) -> bool:
        """Whether the source has nothing more to read."""
        return self._end.exists()

    def set_closed(self, closed: bool) -> None:
        """Let the source wait, or not."""
        _set(Path(self.path), closed)

    def set_ended(self, ended: bool) -> None:
        """Note whether the source has nothing more to read."""
        _set(self._end, ended)

    @property
    def _end(self) -> Path:
        return Path(f"{self.path}.ended")


class Gates:
    """The gates of a job's aligned sources, by uid."""

    def __init__(self, gates: Mapping[str, Gate] | None = None) -> None:
        """All gates are open."""
        self._gates = dict(gates or {})
        self._closed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._gates)

    def get(self, uid: str) -> Gate | None:
        """The gate of a source; None if it never waits."""
        return self._gates.get(uid)

    def reset(self) -> None:
        """Open all gates, and forget which sources have ended: they may read again."""
        for gate in self._gates.values():
            gate.set_closed(False)
            gate.set_ended(False)
        self._closed = frozenset()

    def ended(self) -> frozenset[str]:
        """Uids of the sources that have nothing more to read."""
        return frozenset(uid for uid, gate in self._gates.items() if gate.has_ended)

    def close_only(self, uids: Collection[str]) -> bool:
        """Close the gates of these sources and open the others; whether any was opened."""
        closed = frozenset(uids)
        opened = self._closed - closed
        for uid in opened:
            self._gates[uid].set_closed(False)
        for uid in closed - self._closed:
            self._gates[uid].set_closed(True)
        self._closed = closed
        return bool(opened)


def _set(path: Path, there: bool) -> None:
    if there == path.exists():
        return
    if there:
        path.touch(mode=0o600)
    else:
        path.unlink(missing_ok=True)
