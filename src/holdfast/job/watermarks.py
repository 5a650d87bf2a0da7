"""Watermarks, computed on the driver from the reports of epochs.

Tasks report the latest event time of their rows. It advances a watermark only after the epoch: at
the end of the next one, or in an epoch without input. An operator's watermark is the minimum over
all active time sources that feed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.api.streams.graph import Node

UNTIMED: Final = ""
"""Stands for an input without watermarks, which holds back the others."""


@dataclass(frozen=True)
class TimeSource:
    """A node that assigns timestamps."""

    uid: str
    name: str
    out_of_orderness_ms: int | None
    """Bound of out-of-orderness; None without watermarks."""
    idle_after_ms: int | None
    """Time without rows after which it is idle, and no longer counts."""


@dataclass(frozen=True)
class TimeLine:
    """The time sources of a job, and the operators that depend on them."""

    sources: tuple[TimeSource, ...] = ()
    feeds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Time sources of every operator, by uid; `UNTIMED` for a source without timestamps."""


def time_line(nodes: Iterable[Node], uids: Mapping[int, str]) -> TimeLine:
    """Compute the time line of a job's nodes."""
    sources: list[TimeSource] = []
    above: dict[int, frozenset[str]] = {}
    feeds: dict[str, frozenset[str]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        uid = uids[node.id]
        if node.kind is OperatorKind.TIMESTAMPS:
            strategy = node.details
            sources.append(
                TimeSource(uid, node.name, strategy.out_of_orderness_ms, strategy.idle_after_ms)
            )
            above[node.id] = frozenset({uid})
        elif not node.inputs:
            above[node.id] = frozenset({UNTIMED})
        else:
            # A broadcast stream without watermarks does not hold back the data.
            inputs = [
                above[edge.node.id]
                for edge in node.inputs
                if edge.node.timed
                or not edge.side
                or edge.partitioning.partitioner is not Partitioner.BROADCAST
            ]
            above[node.id] = frozenset[str]().union(*inputs)
        if node.kind not in (OperatorKind.SOURCE, OperatorKind.OUTPUT):
            feeds[uid] = above[node.id]
    return TimeLine(tuple(sources), feeds)


def time_columns(nodes: list[Node]) -> dict[int, Node]:
    """Nodes that take the event time of a source's rows from a column.

    They run no code, so the JVM can read the column. This does not apply if the source's rows are
    also read without event time.
    """
    found = {}
    for node in nodes:
        if node.kind is not OperatorKind.TIMESTAMPS or not isinstance(node.details.assigner, str):
            continue
        [edge, *others] = node.inputs
        readers = [n for n in nodes for e in n.inputs if e.node is edge.node]
        if (
            not others
            and edge.node.kind is OperatorKind.SOURCE
            and edge.partitioning.partitioner is Partitioner.FORWARD
            and readers == [node]
            and node.policy.mode == "fail"
            and node.parallelism is None
            and any(e.node is node for n in nodes for e in n.inputs)
        ):
            found[node.id] = node
    return found


def held_back(line: TimeLine) -> list[str]:
    """Uids of operators whose watermark advances only at the end of the job.

    Some of their inputs have watermarks, and another one has none.
    """
    return [uid for uid, feeds in line.feeds.items() if UNTIMED in feeds and len(feeds) > 1]


class Watermarks:
    """The watermarks of one job attempt; they are not state, and begin at the minimum."""

    def __init__(self, line: TimeLine, now: int, interval_ms: int = 0) -> None:
        """Create the watermarks of a job attempt before its first epoch.

        Args:
            line: The time sources, and the operators that depend on them.
            now: Start of the sources' idle time. All times are in milliseconds on a monotonic
                clock, so that changes of the system time do not make sources idle.
            interval_ms: How long rows may wait for the next epoch while none runs.
        """
        self._sources = {source.uid: source for source in line.sources}
        self._feeds = {uid: feeds for uid, feeds in line.feeds.items() if feeds - {UNTIMED}}
        self._seen = dict.fromkeys(self._sources, MIN_WATERMARK)
        self._heard = dict.fromkeys(self._sources, now)
        """When the last input with rows of a source was read."""
        self._missed = dict.fromkeys(self._sources, now)
        """When the last input without rows of it was read."""
        self._ended = now
        """End of the last epoch; no input has been waiting since then."""
        self._interval_ms = interval_ms
        self._current = dict.fromkeys(line.feeds, MIN_WATERMARK)

    def saw(self, latest: Mapping[str, int], now: int, read_at: int | None = None) -> None:
        """Record the event times of an epoch.

        Args:
            latest: The latest event time of every time source.
            now: Its end.
            read_at: When its input was read; None without input.
        """
        self._ended = now
        if read_at is not None:
            for uid in self._sources:
                (self._heard if uid in latest else self._missed)[uid] = read_at
        for uid, time in latest.items():
            bound = self._sources[uid].out_of_orderness_ms
            if bound is not None:
                self._seen[uid] = max(self._seen[uid], time - bound - 1)

    def sources(self) -> dict[str, int]:
        """Watermark of every time source, by uid."""
        return dict(self._seen)

    @property
    def operators(self) -> list[str]:
        """Uids of all operators."""
        return list(self._current)

    def current(self, uid: str) -> int:
        """Watermark of an operator."""
        return self._current.get(uid, MIN_WATERMARK)

    def possible(self, now: int) -> dict[str, int]:
        """The watermark that every operator with event time can advance to now, by uid."""
        idle = {uid for uid in self._sources if self._is_idle(uid, now)}
        return {
            uid: max(self._current[uid], self._least(feeds, idle))
            for uid, feeds in self._feeds.items()
        }

    def advanced(self, watermarks: Mapping[str, int]) -> None:
        """Record the watermarks of operators after an epoch, by uid."""
        self._current.update(watermarks)

    def at_the_end(self) -> dict[str, int]:
        """The watermark of every operator when there is no more input."""
        return dict.fromkeys(self._current, MAX_WATERMARK)

    def _least(self, feeds: frozenset[str], idle: set[str]) -> int:
        if UNTIMED in feeds:
            return MIN_WATERMARK
        active = [self._seen[uid] for uid in feeds - idle]
        # If all are idle, nothing is held back: the maximum counts.
        return min(active) if active else max(self._seen[uid] for uid in feeds)

    def _is_idle(self, uid: str, now: int) -> bool:
        limit = self._sources[uid].idle_after_ms
        if limit is None:
            return False
        # Rows may have arrived since the last read: only a read can show that none came.
        missing_for = self._missed[uid] - self._heard[uid]
        quiet_for = now - self._ended - self._interval_ms
        return missing_for >= limit or quiet_for >= limit
