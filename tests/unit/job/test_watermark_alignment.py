"""Which sources of an alignment group must wait: decided from watermarks alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import WatermarkStrategy
from holdfast.api.time import WatermarkAlignment
from holdfast.errors import JobGraphError
from holdfast.job.watermarks import EventTimes, TimeLine, TimeSource, Watermarks
from tests.support.programs import Program

DRIFT = 100


def time_source(
    name: str, *reads: str, group: str | None = "g", drift: int = DRIFT, idle: int | None = None
) -> TimeSource:
    alignment = None if group is None else WatermarkAlignment(group, drift)
    return TimeSource(f"time-{name}", name, 0, idle, frozenset(reads or (name,)), "", alignment)


def aligned(*sources: TimeSource, **latest: int) -> Watermarks:
    watermarks = Watermarks(TimeLine(sources))
    watermarks.saw({f"time-{name}": time for name, time in latest.items()}, 0)
    return watermarks


def test_a_source_waits_while_it_is_more_than_the_drift_ahead_of_the_last_one() -> None:
    watermarks = aligned(time_source("a"), time_source("b"), time_source("c"), a=0, b=100, c=101)
    assert watermarks.pause_ahead(()) == {"c"}
    assert watermarks.awaited(()) == {"a": -1}
    watermarks.saw({"time-a": 1}, 1)
    assert watermarks.pause_ahead(()) == set()
    assert watermarks.awaited(()) == {}


def test_every_source_has_a_drift_of_its_own_and_other_groups_do_not_count() -> None:
    sources = [
        time_source("a"),
        time_source("patient", drift=1000),
        time_source("other", group="h"),
        time_source("free", group=None),
    ]
    watermarks = aligned(*sources, a=0, patient=1000, other=9000, free=9000)
    assert watermarks.pause_ahead(()) == set()


def test_a_source_that_has_shown_nothing_yet_holds_back_nobody() -> None:
    watermarks = aligned(time_source("a"), time_source("b"), a=500)
    assert watermarks.pause_ahead(()) == set()
    watermarks.saw({"time-b": 0}, 1)
    assert watermarks.pause_ahead(()) == {"a"}


def test_ended_and_idle_sources_hold_back_nobody() -> None:
    watermarks = aligned(time_source("a"), time_source("b"), a=0, b=500)
    assert watermarks.pause_ahead({"a"}) == set()
    idle = aligned(time_source("a", idle=10), time_source("b"), a=0, b=500)
    assert idle.pause_ahead(()) == {"b"}
    idle.looked(10)
    assert idle.pause_ahead(()) == set()
    assert idle.awaited(()) == {}


def test_a_source_that_waits_does_not_become_idle() -> None:
    watermarks = aligned(time_source("a"), time_source("b", idle=10), a=0, b=500)
    assert watermarks.pause_ahead(()) == {"b"}
    watermarks.looked(100)
    assert watermarks.event_times().quiet_ms == {"time-b": 0}
    watermarks.saw({"time-a": 500}, 100)
    assert watermarks.pause_ahead(()) == set()
    watermarks.looked(105)
    assert watermarks.event_times().quiet_ms == {"time-b": 5}


def test_a_source_that_is_idle_remains_so_while_it_waits() -> None:
    watermarks = aligned(time_source("a"), time_source("b", idle=10), b=500)
    watermarks.looked(10)
    watermarks.saw({"time-a": 0}, 11)
    assert watermarks.pause_ahead(()) == {"b"}
    watermarks.saw({"time-a": 900}, 12)
    assert watermarks.pause_ahead(()) == set(), "nobody waits for b, which is silent"


def test_a_restored_job_continues_with_the_same_sources_waiting() -> None:
    sources = time_source("a"), time_source("b")
    watermarks = aligned(*sources, a=0, b=500)
    restored = Watermarks(TimeLine(sources), watermarks.event_times())
    assert restored.pause_ahead(()) == watermarks.pause_ahead(()) == {"b"}
    assert Watermarks(TimeLine(sources), EventTimes()).pause_ahead(()) == set()


def test_a_source_with_two_event_times_waits_only_if_both_are_ahead() -> None:
    sources = time_source("early", "s"), time_source("late", "s"), time_source("b")
    assert aligned(*sources, early=0, late=900, b=900).pause_ahead(()) == {"b"}
    assert aligned(*sources, early=500, late=900, b=0).pause_ahead(()) == {"s"}


@given(
    st.lists(
        st.tuples(st.sampled_from("gh"), st.integers(0, 500), st.integers(0, 300), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_one_source_of_every_group_always_reads(drawn: list[tuple[str, int, int, bool]]) -> None:
    sources = [
        time_source(str(i), group=group, drift=drift)
        for i, (group, _, drift, _) in enumerate(drawn)
    ]
    watermarks = aligned(*sources, **{str(i): time for i, (_, time, _, _) in enumerate(drawn)})
    ended = {str(i) for i, (_, _, _, has_ended) in enumerate(drawn) if has_ended}
    paused = watermarks.pause_ahead(ended)
    for group in "gh":
        going = {str(i) for i, (own, _, _, over) in enumerate(drawn) if own == group and not over}
        assert not going or going - paused
        last = min((drawn[int(i)][1] for i in going), default=0)
        for i in going:
            assert (i in paused) == (drawn[int(i)][1] - last > drawn[int(i)][2])


# What is refused


def program(*kinds: str, can_pause: bool = True) -> tuple[Program, list[Any]]:
    program = Program()
    streams = [program.source("k string, t bigint", name=kind).uid(kind) for kind in kinds]
    for node in program.graph.nodes:
        described = "a streaming DataFrame"
        node.function = SimpleNamespace(can_pause=can_pause, bounded=False, description=described)
    return program, streams


def strategy(group: str = "g") -> WatermarkStrategy:
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t")
    return by_time.with_watermark_alignment(group, "1 s")


def test_the_job_knows_which_sources_wait_for_others() -> None:
    job, [a, b] = program("a", "b")
    timed = a.assign_timestamps_and_watermarks(strategy()).uid("time-a")
    job.collect(timed.union(b))
    assert job.compile().time.aligned == {"a"}


def test_a_source_that_spark_reads_by_itself_cannot_wait() -> None:
    job, [stream] = program("kafka", can_pause=False)
    job.collect(stream.assign_timestamps_and_watermarks(strategy()))
    with pytest.raises(
        JobGraphError, match=r"made at .*: .* a streaming DataFrame, which Holdfast cannot pause"
    ):
        job.compile()


def test_timestamps_are_assigned_before_sources_are_combined() -> None:
    job, [a, b] = program("a", "b")
    job.collect(a.union(b).assign_timestamps_and_watermarks(strategy()))
    with pytest.raises(JobGraphError, match="rows of 2 sources, and only one can be paused"):
        job.compile()


def test_a_source_is_in_one_group() -> None:
    job, [stream] = program("a")
    for group in ("g", "h"):
        job.collect(stream.assign_timestamps_and_watermarks(strategy(group)))
    with pytest.raises(JobGraphError, match="is in the groups 'g' and 'h'"):
        job.compile()
