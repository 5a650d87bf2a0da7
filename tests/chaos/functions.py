"""The operators of the chaos job, and the rows between them.

Every operator passes on what the one before it gave, and adds all that it holds itself: so
a row at the end tells the state of all of them; but for `Delay`, which adds nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.api.checkpointed import CheckpointedFunction
from tests.chaos.events import NOTHING, Tally, bucket_of, is_sampled, team_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ledgered(NamedTuple):
    """An event, and all that the subtask holds which has let it pass."""

    number: int
    key: int
    probe: bool
    subtask: int
    ledger: Tally


class Folded(NamedTuple):
    """The same, and all that the first keyed operator holds of the event's key."""

    event: Ledgered
    team: int
    tally: Tally
    buckets: list[tuple[str, int]]


class Output(NamedTuple):
    """The same, and all that the second keyed operator holds of the key's team."""

    folded: Folded
    tally: Tally
    ranks: int
    sample: list[int]


class Line(NamedTuple):
    """What is written of every event."""

    number: int
    key: int
    half: int
    rank: int
    """How many events of the key there are with this one; 0 of a probe."""


class Newest(NamedTuple):
    """What is written of a key, again with every event."""

    key: int
    events: int
    total: int
    xor: int


class Ledger(ProcessFunction, CheckpointedFunction):
    """Keeps figures of all events of its subtask in operator state."""

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.state = store.get_list_state(ListStateDescriptor("tallies", Tally))
        self.tally = NOTHING
        for tally in self.state.get():
            self.tally = self.tally.joined(tally)

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Ledgered]:
        if not value.probe:
            self.tally = self.tally.plus(value.number)
        yield Ledgered(value.number, value.key, value.probe, self.subtask, self.tally)

    def snapshot_state(self, ctx: Any) -> None:
        self.state.update([self.tally])


RULES = MapStateDescriptor("rules", None, int)
"""Broadcast state: how many control elements there were, under the key None."""


class Delay(KeyedBroadcastProcessFunction):
    """Holds events back until the watermark has reached them, in map state and timers.

    Every subtask is handed the control elements, which are numbered: one that is lost,
    repeated or out of its place stops the job for good. Without `holds`, events pass at once,
    and what waits is only removed: an epoch of timers is never cut.
    """

    def __init__(self, holds: bool = True) -> None:
        self.holds = holds

    def open(self, ctx: Any) -> None:
        self.waiting = ctx.get_map_state(MapStateDescriptor("waiting", int, Ledgered))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Ledgered]:
        self.waiting.put(ctx.timestamp(), value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        if not self.holds:
            yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Ledgered]:
        if self.holds:
            yield self.waiting.get(timestamp)
        self.waiting.remove(timestamp)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        seen = rules.get(None) or 0
        if value != seen:
            raise AssertionError(f"control element {value} came where {seen} was to come")
        rules.put(None, seen + 1)


LONG = StateTtlConfig.new_builder("1 day").update_ttl_on_read_and_write().build()
"""A time to live: every read of such state is a write."""


class FoldByKey(KeyedProcessFunction):
    """Value state, and map state with a time to live that no entry reaches."""

    def open(self, ctx: Any) -> None:
        self.tally = ctx.get_state(ValueStateDescriptor("tally", Tally))
        self.buckets = ctx.get_map_state(MapStateDescriptor("buckets", str, int, ttl=LONG))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Folded]:
        tally = self.tally.value() or NOTHING
        if not value.probe:
            tally = tally.plus(value.number)
            self.tally.update(tally)
            bucket = bucket_of(value.number)
            self.buckets.put(bucket, (self.buckets.get(bucket) or 0) + 1)
        yield Folded(value, team_of(value.key), tally, sorted(self.buckets.items()))


class TeamSums(AggregateFunction):
    """Adds up events, and the counts that the operator before had reached with them."""

    def create_accumulator(self) -> tuple[int, int, int, int]:
        return (*NOTHING, 0)

    def add(self, value: Any, accumulator: Any) -> tuple[int, int, int, int]:
        *tally, ranks = accumulator
        return (*Tally(*tally).plus(value.event.number), ranks + value.tally.events)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> tuple[int, int, int, int]:
        joined = Tally(*acc_a[:3]).joined(Tally(*acc_b[:3]))
        return (*joined, acc_a[3] + acc_b[3])


class FoldByTeam(KeyedProcessFunction):
    """Aggregating state, and list state with a time to live that no element reaches.

    Its sum of counts is right only if both operators have seen the same events: a state
    of one that is ahead of the other's shows. Takes `pause` seconds for an event, of which
    the first `data` carry data.
    """

    def __init__(self, data: int, pause: float = 0.0) -> None:
        self.data = data
        self.pause = pause

    def open(self, ctx: Any) -> None:
        self.sums = ctx.get_aggregating_state(
            AggregatingStateDescriptor("sums", TeamSums(), tuple[int, int, int, int])
        )
        self.sample = ctx.get_list_state(ListStateDescriptor("sample", int, ttl=LONG))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Output]:
        if self.pause:
            time.sleep(self.pause)
        if not value.event.probe:
            self.sums.add(value)
            if is_sampled(value.event.number, self.data):
                self.sample.add(value.event.number)
        *tally, ranks = self.sums.get() or (*NOTHING, 0)
        yield Output(value, Tally(*tally), ranks, sorted(self.sample.get()))


def line_of(output: Any) -> Line:
    """The row that is written of an event."""
    event, count = output.folded.event, output.folded.tally.events
    return Line(event.number, event.key, event.key % 2, 0 if event.probe else count)


def newest_of(folded: Any) -> Newest:
    """The row that is written of the event's key."""
    return Newest(folded.event.key, *folded.tally)
