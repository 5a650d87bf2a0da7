"""Timers, broadcast state and watermarks against plain models, through failures and rescaling."""

from __future__ import annotations

import copy
import tempfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    HashMapStateBackend,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    TimeDomain,
    ValueStateDescriptor,
)
from holdfast.api.time import MIN_WATERMARK
from holdfast.config.parallelism import default_max_parallelism
from holdfast.job.watermarks import UNTIMED, TimeLine, TimeSource, Watermarks
from holdfast.runtime import operator_store
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.testing.harness import OperatorHarness
from tests.support.in_memory import IN_MEMORY
from tests.support.programs import Program
from tests.support.properties import searched
from tests.support.timed_programs import FIRED, ROWS, Alarm, TimedRun, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ["a", "b", "c", "dd", "k" * 700]
DOMAINS = ("event", "processing")
BUDGET = 4
"""Callbacks of a key that do anything: none may set itself again for ever."""
BACKENDS = st.sampled_from(
    [HashMapStateBackend(), HashMapStateBackend(), EmbeddedRocksDBStateBackend()]
)


class Order(NamedTuple):
    """A timer to set or to delete."""

    use: str
    domain: str
    time: int


class Event(NamedTuple):
    """An element: what is to be done for a key; nothing, if it fails at its end."""

    key: str
    orders: list[Order]
    fails: bool


class Script(NamedTuple):
    """What a callback does, with times from its own one on."""

    orders: list[Order]
    fails: bool


ORDERS = st.lists(
    st.builds(
        Order,
        st.sampled_from(["register", "register", "delete"]),
        st.sampled_from(DOMAINS),
        st.one_of(st.integers(1, 2), st.integers(-5, 15)),
    ),
    max_size=4,
)
EVENTS = st.lists(
    st.builds(Event, st.sampled_from(["a", *KEYS]), ORDERS, st.sampled_from([False, False, True])),
    min_size=1,
    max_size=6,
)
SCRIPTS = st.lists(
    st.builds(Script, ORDERS, st.sampled_from([False, False, False, True])), max_size=4
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), EVENTS),
        st.tuples(st.just("push"), EVENTS),
        st.tuples(st.just("watermark"), st.integers(-5, 25)),
        st.tuples(st.just("clock"), st.integers(-5, 25)),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("rescale"), st.integers(1, 4)),
        st.tuples(st.just("go back"), st.integers(1, 4)),
    ),
    max_size=14,
)


def script_at(scripts: list[Script], time: int, key: str, domain: str) -> Script:
    if not scripts:
        return Script([], False)
    return scripts[(time + len(key) + DOMAINS.index(domain)) % len(scripts)]


class Random(KeyedProcessFunction):
    """Does what events and scripts say."""

    def __init__(self, scripts: list[Script]) -> None:
        self.scripts = scripts

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self.spent = ctx.get_state(ValueStateDescriptor("spent", int))

    def process_element(self, value: Event, ctx: Any) -> Iterator[Any]:
        yield from self._do(value.key, value.orders, value.fails, 0, ctx, "element")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key, domain = ctx.get_current_key(), ctx.time_domain()
        name = "event" if domain is TimeDomain.EVENT_TIME else "processing"
        script = script_at(self.scripts, timestamp, key, name)
        spent = self.spent.value() or 0
        if spent >= BUDGET:
            script = Script([], False)
        self.spent.update(spent + 1)
        yield from self._do(key, script.orders, script.fails, timestamp, ctx, name)

    def _do(
        self, key: str, orders: list[Order], fails: bool, start: int, ctx: Any, what: str
    ) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        for order in orders:
            service = ctx.timer_service()
            getattr(service, f"{order.use}_{order.domain}_time_timer")(start + order.time)
        yield what, key, start, self.count.value()
        if fails:
            raise ValueError("as it was told")


class State(NamedTuple):
    """What survives an epoch."""

    pending: dict[str, set[tuple[int, str]]]
    counts: dict[str, int]
    spent: dict[str, int]

    @staticmethod
    def empty() -> State:
        return State({domain: set() for domain in DOMAINS}, {}, {})


class Model:
    """What subtasks have to do, on sets and dictionaries."""

    def __init__(self, scripts: list[Script], state: State) -> None:
        self.scripts = scripts
        self.state = state
        self.committed = copy.deepcopy(state)
        self.skipped = 0

    def element(self, event: Event) -> list[Any]:
        return self._do(event.key, event.orders, event.fails, 0, "element", spends=False)

    def fire(self, domain: str, until: int, mine: set[str]) -> list[Any]:
        """Callbacks of one subtask; `mine` are its keys."""
        out: list[Any] = []
        while True:
            pending = self.state.pending[domain]
            due = [timer for timer in pending if timer[0] <= until and timer[1] in mine]
            if not due:
                return out
            time, key = min(due, key=place)
            pending.remove((time, key))
            script = script_at(self.scripts, time, key, domain)
            if self.state.spent.get(key, 0) >= BUDGET:
                script = Script([], False)
            out += self._do(key, script.orders, script.fails, time, domain, spends=True)

    def _do(
        self, key: str, orders: list[Order], fails: bool, start: int, what: str, *, spends: bool
    ) -> list[Any]:
        if fails:
            self.skipped += 1
            return []
        for order in orders:
            timer = (start + order.time, key)
            pending = self.state.pending[order.domain]
            pending.add(timer) if order.use == "register" else pending.discard(timer)
        self.state.counts[key] = self.state.counts.get(key, 0) + 1
        if spends:
            self.state.spent[key] = self.state.spent.get(key, 0) + 1
        return [(what, key, start, self.state.counts[key])]

    def end(self) -> None:
        self.committed = copy.deepcopy(self.state)

    def fail(self) -> None:
        self.state = copy.deepcopy(self.committed)


def place(timer: tuple[int, str]) -> tuple[int, int, int, bytes]:
    """Timers of one time fire by key group, then by key."""
    time, key = timer
    return time, key_group_of(key, default_max_parallelism(1)), len(key), key.encode()


class Job:
    """The function on some subtasks, beside the model of it."""

    def __init__(self, scripts: list[Script], backend: Any, parallelism: int) -> None:
        self.scripts, self.backend = scripts, backend
        self.watermark = MIN_WATERMARK
        self.clock = 0
        self.model = Model(scripts, State.empty())
        self.jobs: list[OperatorHarness] = []
        self._start(parallelism, None)
        self.kept: tuple[list[Any], State] | None = None

    def _start(self, parallelism: int, snapshots: list[Any] | None) -> None:
        self.close()
        self.watermark, self.clock = MIN_WATERMARK, 0
        self.jobs = [
            OperatorHarness(
                Random(self.scripts),
                key=lambda event: event.key,
                backend=self.backend,
                on_error=ErrorPolicy.skip(),
                parallelism=parallelism,
                subtask=subtask,
                restore_from=snapshots,
            )
            for subtask in range(parallelism)
        ]
        self.mine = [{key for key in KEYS if job.owns(key)} for job in self.jobs]
        self.expected: list[list[Any]] = [[] for _ in self.jobs]
        self.settled = [0] * parallelism

    def close(self) -> None:
        for job in self.jobs:
            job.close()

    def act(self, what: str, argument: Any) -> None:
        match what:
            case "push":
                for job, mine, out in zip(self.jobs, self.mine, self.expected, strict=True):
                    events = [event for event in argument if event.key in mine]
                    job.push(*events)
                    for event in events:
                        out += self.model.element(event)
            case "watermark":
                self.watermark = max(self.watermark, argument)
                self._fire("event", self.watermark, "advance_watermark", argument)
            case "clock":
                self.clock = argument
                self._fire("processing", self.clock, "set_processing_time", argument)
            case "end":
                for job in self.jobs:
                    job.end_epoch()
                self._settle()
            case "fail":
                for job in self.jobs:
                    job.fail()
                self.model.fail()
                for out, length in zip(self.expected, self.settled, strict=True):
                    del out[length:]
            case "rescale":
                snapshots = [job.snapshot() for job in self.jobs]
                self._settle()
                self.check()
                self.kept = snapshots, copy.deepcopy(self.model.state)
                self._start(argument, snapshots)
            case "go back":
                if self.kept is not None:
                    snapshots, state = self.kept
                    self.model = Model(self.scripts, copy.deepcopy(state))
                    self._start(argument, snapshots)

    def _fire(self, domain: str, until: int, use: str, argument: int) -> None:
        for job, mine, out in zip(self.jobs, self.mine, self.expected, strict=True):
            getattr(job, use)(argument)
            out += self.model.fire(domain, until, mine)

    def _settle(self) -> None:
        self.model.end()
        self.settled = [len(out) for out in self.expected]

    def check(self) -> None:
        assert [job.outputs for job in self.jobs] == self.expected
        for job, mine in zip(self.jobs, self.mine, strict=True):
            for key in mine:
                assert job.state("count", key) == self.model.state.counts.get(key)
                assert job.state("spent", key) == self.model.state.spent.get(key)


@searched(30, 120)
def test_timers_fire_as_the_model_says_through_everything(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        scripts=SCRIPTS,
        actions=ACTIONS,
        backend=BACKENDS,
        parallelism=st.integers(1, 3),
        chunk=st.sampled_from([1, 2, 1000]),
        cache=st.sampled_from([1, 1000]),
    )
    def check(
        scripts: list[Script],
        actions: list[tuple[str, Any]],
        backend: Any,
        parallelism: int,
        chunk: int,
        cache: int,
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            limited = partial(KeyedStateBackend, timers_at_once=chunk, cache_limit=cache)
            patch.setattr(operator_store, "KeyedStateBackend", limited)
            patch.setattr(tempfile, "tempdir", IN_MEMORY)
            job = Job(scripts, backend, parallelism)
            try:
                for action in actions:
                    job.act(*action)
                    job.check()
                # Whatever is pending still, and nothing else, comes in the end.
                for action in (("end", None), ("watermark", 10**6), ("clock", 10**6)):
                    job.act(*action)
                job.act("watermark", 10**6)
                job.check()
            finally:
                job.close()

    check()


# Broadcast state

RULES = MapStateDescriptor("rules", str, int)
NAMES = ["a", "b", "c"]
CONTROLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("clear"), st.none(), st.none()),
        st.tuples(st.just("add to all"), st.none(), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=5,
)
RULED_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("control"), CONTROLS),
        st.tuples(st.just("control"), CONTROLS),
        st.tuples(st.just("data"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("rescale"), st.integers(1, 4)),
    ),
    max_size=14,
)


class Ruled(KeyedBroadcastProcessFunction):
    """Adds the sum of the rules to what is kept of a key."""

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(TOTAL)

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        self.total.update((self.total.value() or 0) + sum(rules.values()))
        yield value, self.total.value(), sorted(rules.items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        match value:
            case ("put", name, rule):
                rules.put(name, rule)
            case ("remove", name, _):
                rules.remove(name)
            case ("clear", _, _):
                rules.clear()
            case (_, _, amount):
                ctx.apply_to_keyed_state(
                    TOTAL, lambda key, total: total.update(total.value() + amount)
                )


TOTAL = ValueStateDescriptor("total", int)


def obey(control: tuple[str, Any, Any], rules: dict[str, int], totals: dict[str, int]) -> None:
    match control:
        case ("put", name, rule):
            rules[name] = rule
        case ("remove", name, _):
            rules.pop(name, None)
        case ("clear", _, _):
            rules.clear()
        case (_, _, amount):
            for key in totals:
                totals[key] += amount


@searched(20, 80)
def test_all_copies_of_a_broadcast_state_are_what_the_model_says(examples: int) -> None:
    @settings(max_examples=examples)
    @given(actions=RULED_ACTIONS, backend=BACKENDS, parallelism=st.integers(1, 3))
    def check(actions: list[tuple[str, Any]], backend: Any, parallelism: int) -> None:
        def start(parallelism: int, snapshots: list[Any] | None) -> list[OperatorHarness]:
            return [
                OperatorHarness(
                    Ruled(),
                    key=str,
                    broadcast=[RULES],
                    backend=backend,
                    parallelism=parallelism,
                    subtask=subtask,
                    restore_from=snapshots,
                )
                for subtask in range(parallelism)
            ]

        rules: dict[str, int] = {}
        totals: dict[str, int] = {}
        committed: tuple[dict[str, int], dict[str, int]] = ({}, {})
        patch = pytest.MonkeyPatch()
        patch.setattr(tempfile, "tempdir", IN_MEMORY)
        jobs = start(parallelism, None)
        try:
            for what, argument in actions:
                match what:
                    case "control":
                        for job in jobs:
                            job.push_second(*argument)
                        for control in argument:
                            obey(control, rules, totals)
                    case "data":
                        for job in jobs:
                            mine = [key for key in argument if job.owns(key)]
                            expected = []
                            for key in mine:
                                totals[key] = totals.get(key, 0) + sum(rules.values())
                                expected.append((key, totals[key], sorted(rules.items())))
                            job.take()
                            job.push(*mine)
                            assert job.outputs == expected
                    case "end":
                        for job in jobs:
                            job.end_epoch()
                        committed = dict(rules), dict(totals)
                    case "fail":
                        for job in jobs:
                            job.fail()
                        rules, totals = dict(committed[0]), dict(committed[1])
                    case "rescale":
                        snapshots = [job.snapshot() for job in jobs]
                        committed = dict(rules), dict(totals)
                        for job in jobs:
                            job.close()
                        jobs = start(argument, snapshots)
                for job in jobs:
                    assert job.operator_state("rules") == rules
            for job in jobs:
                for key in KEYS:
                    if job.owns(key):
                        assert job.state("total", key) == totals.get(key)
        finally:
            for job in jobs:
                job.close()
            patch.undo()

    check()


# Watermarks

SOURCES = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(1, 8))),
    min_size=1,
    max_size=3,
)
HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.dictionaries(st.integers(0, 2), st.integers(-20, 20), max_size=3),
        st.booleans(),
    ),
    max_size=12,
)


@given(
    kinds=SOURCES,
    feeds=st.lists(st.sets(st.integers(-1, 2), min_size=1), min_size=1, max_size=3),
    history=HISTORIES,
)
def test_watermarks_are_what_the_whole_history_says(
    kinds: list[tuple[int | None, int | None]],
    feeds: list[set[int]],
    history: list[tuple[int, dict[int, int], bool]],
) -> None:
    numbers = range(len(kinds))
    sources = tuple(TimeSource(f"s{n}", "", bound, idle) for n, (bound, idle) in enumerate(kinds))
    fed = {
        f"op{i}": frozenset(UNTIMED if n < 0 else f"s{n % len(kinds)}" for n in found)
        for i, found in enumerate(feeds)
    }
    marks = Watermarks(TimeLine(sources, fed))
    now = 0
    marks.looked(now)
    seen: dict[str, list[tuple[int, int]]] = {f"s{n}": [] for n in numbers}
    missed: dict[str, list[int]] = {f"s{n}": [] for n in numbers}
    reached: dict[str, list[int]] = {uid: [MIN_WATERMARK] for uid in fed}

    def naive(uid: str) -> int:
        if UNTIMED in fed[uid]:
            return max(reached[uid])
        marks_of = {
            source.uid: max(
                [MIN_WATERMARK]
                + [
                    time - source.out_of_orderness_ms - 1
                    for _, time in seen[source.uid]
                    if source.out_of_orderness_ms is not None
                ]
            )
            for source in sources
            if source.uid in fed[uid]
        }
        active = [
            marks_of[source.uid]
            for source in sources
            if source.uid in fed[uid]
            and (
                source.idle_after_ms is None
                or max([0, *missed[source.uid]]) - max([0] + [at for at, _ in seen[source.uid]])
                < source.idle_after_ms
            )
        ]
        least = min(active) if active else max(marks_of.values())
        return max(*reached[uid], least)

    for passed, latest, advances in history:
        now += passed
        found = {f"s{n}": time for n, time in latest.items() if n in numbers}
        marks.saw(found, read_at=now)
        for uid in seen:
            if uid in found:
                seen[uid].append((now, found[uid]))
            else:
                missed[uid].append(now)
        possible = marks.possible()
        timed_ones = {uid for uid, above in fed.items() if above - {UNTIMED}}
        assert possible == {uid: naive(uid) for uid in timed_ones}
        if advances:
            marks.advanced(possible)
            for uid, mark in possible.items():
                assert mark >= reached[uid][-1]
                reached[uid].append(mark)
        assert {uid: marks.current(uid) for uid in fed} == {
            uid: found[-1] for uid, found in reached.items()
        }


# Together, as on a driver


@settings(max_examples=25)
@given(
    epochs=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 20)), max_size=5),
            st.booleans(),
            st.booleans(),
            st.integers(0, 10),
        ),
        max_size=6,
    ),
    bound=st.integers(0, 5),
)
def test_every_timer_fires_once_and_never_before_its_time(
    epochs: list[tuple[list[tuple[str, int]], bool, bool, int]], bound: int
) -> None:
    program = Program(parallelism=2)
    stream = timed(program.source(ROWS), bound).key_by("k").process(Alarm(*DOMAINS), FIRED)
    found = program.collect(stream.uid("alarm"))
    pending: set[tuple[str, int, str]] = set()
    with TemporaryDirectory() as directory:
        run = TimedRun(program, Path(directory))

        def check(elements: list[tuple[str, int]]) -> None:
            """What an epoch has fired was pending or set in it, and is all that was due."""
            limits = {
                "event time": run.keeper.watermarks()["alarm"],
                "processing time": run.clock.now_ms(),
            }
            set_now = {(key, time, domain) for key, time in elements for domain in limits}
            for timer in set(map(tuple, found)):
                assert timer in pending | set_now
                # It fires before the first row, and is set again by it.
                again = timer in pending & set_now
                assert found.count(timer) <= 1 + again
            pending.update(set_now)
            due = {timer for timer in pending if timer[1] <= limits[timer[2]]}
            assert set(map(tuple, found)) == due
            pending.difference_update(due)
            found.clear()

        for elements, restarts, ticks, passed in epochs:
            run.clock.advance(passed)
            if restarts:
                run.restart()
            run.push(list(elements))
            check(elements)
            if ticks and run.is_due():
                run.tick()
                check([])
                assert not run.is_due()
        run.finish()
        assert sorted(map(tuple, found)) == sorted(pending)


class Level(KeyedProcessFunction):
    """Lets elements pass and sets timers; names the elements that come late."""

    def __init__(self, delay: int, *, first: bool) -> None:
        self.delay = delay
        self.first = first

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers, time = ctx.timer_service(), ctx.timestamp()
        if time > timers.current_watermark():
            timers.register_event_time_timer(time + self.delay)
            yield value.k, time, value.way
        elif not self.first and value.way != "direct":
            yield value.k, time, "late"

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert timestamp <= ctx.timer_service().current_watermark()
        yield ctx.get_current_key(), timestamp, "fired"


WAYS = "k string, t bigint, way string"
MOMENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=4)


@settings(max_examples=40)
@given(
    delays=st.lists(st.integers(1, 30), min_size=2, max_size=3),
    second=st.integers(0, 2),
    epochs=st.lists(st.tuples(MOMENTS, MOMENTS, st.booleans(), st.booleans()), max_size=6),
    bound=st.integers(0, 10),
)
def test_no_row_becomes_late_on_its_way(
    delays: list[int],
    second: int,
    epochs: list[tuple[list[tuple[str, int]], list[tuple[str, int]], bool, bool]],
    bound: int,
) -> None:
    program = Program(parallelism=2)
    stream = timed(program.source(WAYS), bound, "times")
    other = timed(program.source(WAYS), 0, "other times")
    for number, delay in enumerate(delays):
        if number == second:
            # Rows of the other source may be late there of themselves.
            stream = stream.union(other)
        level = Level(delay, first=number == 0)
        stream = stream.key_by("k").process(level, WAYS).uid(f"level {number}")
    found = program.collect(stream)
    if second >= len(delays):
        program.collect(other)
    with TemporaryDirectory() as directory:
        run = TimedRun(program, Path(directory))
        for rows, direct, restarts, ticks in epochs:
            if restarts:
                run.restart()
            run.push([(*row, "way") for row in rows], [(*row, "direct") for row in direct])
            if ticks:
                run.tick()
        run.finish()
    assert [row for row in found if row.way == "late"] == []


class Judge(KeyedProcessFunction):
    """Says of every element whether it is late; sets timers of both kinds."""

    def __init__(self, level: int) -> None:
        self.level = level

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers, time = ctx.timer_service(), ctx.timestamp()
        timers.register_event_time_timer(time + 5)
        timers.register_processing_time_timer(timers.current_processing_time() + 3)
        late = time <= timers.current_watermark()
        yield value.k, time, f"{value.way}{'late' if late else 'in time'} on {self.level}, "

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            yield ctx.get_current_key(), timestamp, f"fired on {self.level}, "


DISTURBED = st.lists(
    st.tuples(MOMENTS, MOMENTS, st.integers(0, 8), st.booleans(), st.booleans(), st.booleans()),
    max_size=7,
)


@settings(max_examples=60)
@given(
    epochs=DISTURBED,
    bound=st.integers(0, 10),
    levels=st.integers(1, 2),
    idle=st.one_of(st.none(), st.integers(1, 20)),
)
def test_neither_ticks_nor_restarts_change_what_is_late(
    epochs: list[tuple[list[Any], list[Any], int, bool, bool, bool]],
    bound: int,
    levels: int,
    idle: int | None,
) -> None:
    """Ticks in event time change it behind a second exchange, but neither the clock nor a failure.

    A restart takes its time, and its stores are looked into before the next rows come.
    """

    def outcome(*, disturbed: bool) -> list[tuple[Any, ...]]:
        program = Program(parallelism=2)
        stream = timed(program.source(WAYS), bound, "times", idle)
        stream = stream.union(timed(program.source(WAYS), 0, "other times", idle))
        for level in range(1, levels + 1):
            stream = stream.key_by("k").process(Judge(level), WAYS)
        found = program.collect(stream)
        with TemporaryDirectory() as directory:
            run = TimedRun(program, Path(directory))
            run.look()
            for rows, others, passed, restarts, by_clock, ticks in epochs:
                if restarts and disturbed:
                    # The driver fails after a look, and not in the middle of a silence.
                    run.restart()
                    run.clock.advance(100)
                    run.tick_by_clock()
                    run.look()
                run.clock.advance(passed)
                if by_clock and disturbed:
                    run.tick_by_clock()
                run.push(*([(*row, "") for row in each] for each in (rows, others)))
                if ticks and disturbed and levels == 1:
                    run.tick()
            # What has not fired comes in the end.
            run.finish()
        return sorted(map(tuple, found))

    assert outcome(disturbed=True) == outcome(disturbed=False)
