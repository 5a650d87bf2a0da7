"""Watermarks, computed on the driver from the reports of epochs.

Tasks report the latest event time of their rows. It advances watermarks only after the epoch: in
the next one, before its rows where only sources feed an operator and else at its end, or in an
epoch without input. An operator's watermark is the minimum over all active time sources that feed
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.api.streams.graph import Node
    from holdfast.api.time import WatermarkAlignment

UNTIMED: Final = ""
"""Stands for an input without watermarks, which holds back the others."""


@dataclass(frozen=True)
class TimeSource:
    """A node that assigns timestamps."""

    uid: str
    name: str
    out_of_orderness_ms: int | None
    """Bound of out-of-orderness; None if the latest event time says nothing of the watermark."""
    idle_after_ms: int | None
    """Time without rows after which it is idle, and no longer counts."""
    reads: frozenset[str] = frozenset()
    """Uids of the sources whose rows it gives timestamps."""
    made_at: str = field(default="", compare=False)
    """Where the program made it."""
    alignment: WatermarkAlignment | None = None
    """The group of sources that wait for each other; None if it waits for none."""


@dataclass(frozen=True)
class EventTimes:
    """How far event time has advanced in a job, as checkpoints store it."""

    sources: dict[str, int] = field(default_factory=dict)
    """Watermark of every time source, by uid."""
    quiet_ms: dict[str, int] = field(default_factory=dict)
    """For how long looks found no rows of a time source that can become idle, by uid."""
    operators: dict[str, int] = field(default_factory=dict)
    """Watermark of every operator with event time, by uid."""

    def without(self, rewound: Collection[str]) -> EventTimes:
        """The same without some time sources, which begin again."""
        sources = {uid: time for uid, time in self.sources.items() if uid not in rewound}
        return EventTimes(sources, self.quiet_ms, self.operators)


@dataclass(frozen=True)
class TimeLine:
    """The time sources of a job, and the operators that depend on them."""

    sources: tuple[TimeSource, ...] = ()
    feeds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Time sources of every operator, by uid; `UNTIMED` for a source without timestamps."""

    @property
    def aligned(self) -> frozenset[str]:
        """Uids of the sources that wait for others."""
        return frozenset(uid for one in self.sources if one.alignment for uid in one.reads)


def time_line(nodes: Iterable[Node], uids: Mapping[int, str]) -> TimeLine:
    """Compute the time line of a job's nodes."""
    sources: list[TimeSource] = []
    above: dict[int, frozenset[str]] = {}
    read: dict[int, frozenset[str]] = {}
    feeds: dict[str, frozenset[str]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        uid = uids[node.id]
        upstream = [read[edge.node.id] for edge in node.inputs]
        read[node.id] = frozenset[str]().union(*upstream) if upstream else frozenset({uid})
        if node.kind is OperatorKind.TIMESTAMPS:
            strategy = node.details
            bounds = strategy.out_of_orderness_ms, strategy.idle_after_ms
            sources.append(
                TimeSource(uid, node.name, *bounds, read[node.id], node.where, strategy.alignment)
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


def check_alignment(nodes: Iterable[Node], uids: Mapping[int, str], line: TimeLine) -> None:
    """Check that the sources of alignment groups can wait for each other.

    Raises:
        JobGraphError: A source cannot be paused, or would wait in two groups.
    """
    sources = {uids[node.id]: node for node in nodes if not node.inputs}
    groups: dict[str, str] = {}
    for time_source in line.sources:
        if time_source.alignment is None:
            continue
        where = f"with_watermark_alignment of {time_source.name!r}, made at {time_source.made_at}"
        group = time_source.alignment.group
        if len(time_source.reads) != 1:
            raise JobGraphError(
                f"{where}: the stream has rows of {len(time_source.reads)} sources, and only one "
                "can be paused; assign timestamps to each of them before they are combined"
            )
        [uid] = time_source.reads
        source = sources[uid]
        if not source.function.can_pause:
            raise JobGraphError(
                f"{where}: {source} is {source.function.description}, which Holdfast cannot "
                "pause; collections, generators and a ReplayableSource can be. Leave the "
                "alignment out, and limit what Spark reads with an option of its source, such as "
                "maxOffsetsPerTrigger"
            )
        if groups.setdefault(uid, group) != group:
            raise JobGraphError(
                f"{where}: {source} is in the groups {groups[uid]!r} and {group!r}, which could "
                "wait for each other for ever; use one group"
            )


def time_columns(nodes: list[Node]) -> dict[int, Node]:
    """Nodes that take the event time of a source's rows from a column.

    They run no code, so the JVM can read the column. This does not apply if the source's rows are
    also read without event time, or carry watermarks.
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
            and node.details.generator is None
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
    """The watermarks of one job attempt; they continue where a checkpoint has them.

    Sources become idle by looks alone: a look that finds no rows of a source adds the time since
    the look before it. Time before the first look, and after the last one, does not count.
    """

    def __init__(self, line: TimeLine, restored: EventTimes | None = None) -> None:
        """Create the watermarks of a job attempt before its first epoch.

        Args:
            line: The time sources, and the operators that depend on them.
            restored: Event times of the checkpoint that the job attempt starts from.
        """
        self._sources = {source.uid: source for source in line.sources}
        self._feeds = {uid: feeds for uid, feeds in line.feeds.items() if feeds - {UNTIMED}}
        self._seen = dict.fromkeys(self._sources, MIN_WATERMARK)
        self._quiet_ms = dict.fromkeys(self._sources, 0)
        """For how long looks have found no rows of a source."""
        self._looked_at: int | None = None
        self._waiting: frozenset[str] = frozenset()
        """Time sources that are too far ahead of their group."""
        self._current = dict.fromkeys(line.feeds, MIN_WATERMARK)
        self._reached = dict(self._current)
        """The same before the end of the input."""
        if restored is not None:
            self._restore(restored)

    def _restore(self, times: EventTimes) -> None:
        known = {uid: time for uid, time in times.sources.items() if uid in self._sources}
        self._seen.update(known)
        self._quiet_ms.update((uid, times.quiet_ms.get(uid, 0)) for uid in known)
        for uid, feeds in self._feeds.items():
            # A time source that is new, or begins again, holds the operator at the minimum.
            if feeds <= known.keys():
                self._current[uid] = times.operators.get(uid, MIN_WATERMARK)
        self._reached = dict(self._current)

    def event_times(self) -> EventTimes:
        """How far event time has advanced, for a checkpoint.

        The end of the input is not a time: a later job may continue from the checkpoint.
        """
        can_be_idle = [s.uid for s in self._sources.values() if s.idle_after_ms is not None]
        current = {uid: self._current[uid] for uid in self._feeds}
        ended = {uid for uid, time in current.items() if time == MAX_WATERMARK}
        current |= {uid: max(self._reached[uid], self._least(self._feeds[uid])) for uid in ended}
        quiet_ms = {uid: self._quiet_ms[uid] for uid in can_be_idle}
        return EventTimes(dict(self._seen), quiet_ms, current)

    def saw(
        self,
        latest: Mapping[str, int],
        read_at: int | None = None,
        emitted: Mapping[str, int] | None = None,
    ) -> None:
        """Record the event times of an epoch.

        Args:
            latest: The latest event time of every time source.
            read_at: When its input was read, on a monotonic clock, so that changes of the system
                time do not make sources idle; None without input.
            emitted: The greatest watermark that generators have emitted, by time source.
        """
        if read_at is not None:
            self.looked(read_at, found=latest)
        for uid, time in latest.items():
            bound = self._sources[uid].out_of_orderness_ms
            if bound is not None:
                self._seen[uid] = max(self._seen[uid], time - bound - 1)
        for uid, watermark in (emitted or {}).items():
            self._seen[uid] = max(self._seen[uid], watermark)

    def looked(self, at: int, found: Collection[str] = (), ago_ms: int = 0) -> None:
        """Record a look at all sources.

        Args:
            at: When, in milliseconds on a monotonic clock.
            found: The time sources that had rows.
            ago_ms: How long before that it may have been.
        """
        if self._looked_at is None:
            self._looked_at = at
        passed = max(0, at - ago_ms - self._looked_at)
        self._looked_at += passed
        for uid in self._sources:
            if uid in found:
                self._quiet_ms[uid] = 0
            elif uid not in self._waiting:
                # A source that waits for others is not asked.
                self._quiet_ms[uid] += passed

    def pause_ahead(self, ended: Collection[str]) -> frozenset[str]:
        """Decide which sources must wait for others of their alignment group.

        The one with the least watermark never waits, so that one of them always reads.

        Args:
            ended: Uids of the sources that have nothing more to read.

        Returns:
            Their uids.
        """
        aligned = [source for source in self._sources.values() if source.alignment is not None]
        last = self._last_of_groups(ended)
        waiting = set()
        for source in aligned:
            assert source.alignment is not None
            slowest = last.get(source.alignment.group)
            if slowest is None:
                continue
            ahead_ms = self._seen[source.uid] - self._seen[slowest.uid]
            if ahead_ms > source.alignment.max_drift_ms:
                waiting.add(source.uid)
        self._waiting = frozenset(waiting)
        reading = {uid for source in aligned if source.uid not in waiting for uid in source.reads}
        return frozenset(uid for source in aligned for uid in source.reads) - reading

    def awaited(self, ended: Collection[str]) -> dict[str, int]:
        """Watermarks of the sources that others wait for, by uid."""
        groups = {
            source.alignment.group
            for source in self._sources.values()
            if source.alignment is not None and source.uid in self._waiting
        }
        return {
            uid: self._seen[slowest.uid]
            for group, slowest in self._last_of_groups(ended).items()
            if group in groups
            for uid in slowest.reads
        }

    def _last_of_groups(self, ended: Collection[str]) -> dict[str, TimeSource]:
        """The time source with the least watermark of every alignment group.

        Those without a watermark, idle ones and those that have ended do not count.
        """
        found: dict[str, TimeSource] = {}
        for source in self._sources.values():
            if source.alignment is None or self._seen[source.uid] == MIN_WATERMARK:
                continue
            if self._is_idle(source.uid) or source.reads <= set(ended):
                continue
            known = found.setdefault(source.alignment.group, source)
            if self._seen[source.uid] < self._seen[known.uid]:
                found[source.alignment.group] = source
        return found

    @property
    def can_be_idle(self) -> bool:
        """Whether any source becomes idle when it is silent."""
        return any(source.idle_after_ms is not None for source in self._sources.values())

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

    def possible(self) -> dict[str, int]:
        """The watermark that every operator with event time can advance to, by uid."""
        return {
            uid: max(self._current[uid], self._least(feeds)) for uid, feeds in self._feeds.items()
        }

    def advanced(self, watermarks: Mapping[str, int]) -> None:
        """Record the watermarks of operators after an epoch, by uid."""
        self._current.update(watermarks)
        before_the_end = {uid: time for uid, time in watermarks.items() if time != MAX_WATERMARK}
        self._reached.update(before_the_end)

    def at_the_end(self) -> dict[str, int]:
        """The watermark of every operator when there is no more input."""
        return dict.fromkeys(self._current, MAX_WATERMARK)

    def _least(self, feeds: frozenset[str]) -> int:
        if UNTIMED in feeds:
            return MIN_WATERMARK
        active = [self._seen[uid] for uid in feeds if not self._is_idle(uid)]
        # If all are idle, nothing is held back: the maximum counts.
        return min(active) if active else max(self._seen[uid] for uid in feeds)

    def _is_idle(self, uid: str) -> bool:
        limit = self._sources[uid].idle_after_ms
        return limit is not None and self._quiet_ms[uid] >= limit
