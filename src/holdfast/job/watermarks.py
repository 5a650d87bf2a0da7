"""How far event time has come: watermarks, kept on the driver from what epochs have seen.

Tasks report the latest event time they have met. What an epoch saw can move a watermark
only after it: at the end of the next epoch, or in one without input that follows. An
operator's watermark is the least of those of all time sources that feed it and are active.
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
"""Stands for an input without watermarks, which holds those of the others back."""


@dataclass(frozen=True)
class TimeSource:
    """Something that gives rows their event time."""

    uid: str
    name: str
    out_of_orderness_ms: int | None
    """How far rows may lag behind the latest; None for no watermarks."""
    idle_after_ms: int | None
    """How long without rows before it no longer counts."""


@dataclass(frozen=True)
class TimeLine:
    """What gives rows their event time, and which operators depend on it."""

    sources: tuple[TimeSource, ...] = ()
    feeds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Time sources above every operator, by uid; `UNTIMED` among them for any other source."""


def time_line(nodes: Iterable[Node], uids: Mapping[int, str]) -> TimeLine:
    """The time line of a job's nodes."""
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
            # A control stream without watermarks does not hold the data back.
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
    """Nodes that only say in which column the rows of a source have their event time.

    They run no code, so the JVM can do what they say. Where a source's rows are read without
    their event time as well, a node of its own gives it to the others.
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
    """Operators, by uid, whose watermark only moves at the end of the job.

    Some of their inputs have watermarks, and another one has none.
    """
    return [uid for uid, feeds in line.feeds.items() if UNTIMED in feeds and len(feeds) > 1]


class Watermarks:
    """The watermarks of one job attempt. They are not state: each begins at the least."""

    def __init__(self, line: TimeLine, now: int, interval_ms: int = 0) -> None:
        """Nothing was seen yet.

        Args:
            line: What gives rows their event time, and which operators depend on it.
            now: When sources begin to be idle; here as everywhere in milliseconds on a clock
                that never goes back, or a source would be idle whenever somebody sets the clock.
            interval_ms: How long rows may wait for the next epoch, while none runs.
        """
        self._sources = {source.uid: source for source in line.sources}
        self._feeds = {uid: feeds for uid, feeds in line.feeds.items() if feeds - {UNTIMED}}
        self._seen = dict.fromkeys(self._sources, MIN_WATERMARK)
        self._heard = dict.fromkeys(self._sources, now)
        """When the last input was read in which a source had rows."""
        self._missed = dict.fromkeys(self._sources, now)
        """When the last input was read in which it had none."""
        self._ended = now
        """When the last epoch has ended: from then on, nobody has kept input waiting."""
        self._interval_ms = interval_ms
        self._current = dict.fromkeys(line.feeds, MIN_WATERMARK)

    def saw(self, latest: Mapping[str, int], now: int, read_at: int | None = None) -> None:
        """An epoch has ended.

        Args:
            latest: The latest event times it has met, by time source.
            now: When it has ended.
            read_at: When its input was read; None if it had none.
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
        """How far every time source has come, by uid."""
        return dict(self._seen)

    @property
    def operators(self) -> list[str]:
        """All operators, by uid."""
        return list(self._current)

    def current(self, uid: str) -> int:
        """Where an operator's watermark stands."""
        return self._current.get(uid, MIN_WATERMARK)

    def possible(self, now: int) -> dict[str, int]:
        """Where the watermark of every operator with event time could stand now, by uid."""
        idle = {uid for uid in self._sources if self._is_idle(uid, now)}
        return {
            uid: max(self._current[uid], self._least(feeds, idle))
            for uid, feeds in self._feeds.items()
        }

    def advanced(self, watermarks: Mapping[str, int]) -> None:
        """An epoch has ended that has moved watermarks to here, by operator."""
        self._current.update(watermarks)

    def at_the_end(self) -> dict[str, int]:
        """Where every operator's watermark stands when there is no more input."""
        return dict.fromkeys(self._current, MAX_WATERMARK)

    def _least(self, feeds: frozenset[str], idle: set[str]) -> int:
        if UNTIMED in feeds:
            return MIN_WATERMARK
        active = [self._seen[uid] for uid in feeds - idle]
        # Where all are idle, nothing is held back: the furthest of them counts.
        return min(active) if active else max(self._seen[uid] for uid in feeds)

    def _is_idle(self, uid: str, now: int) -> bool:
        limit = self._sources[uid].idle_after_ms
        if limit is None:
            return False
        # Rows may have come since input was last read: only what was looked for can be missing.
        missing_for = self._missed[uid] - self._heard[uid]
        quiet_for = now - self._ended - self._interval_ms
        return missing_for >= limit or quiet_for >= limit
