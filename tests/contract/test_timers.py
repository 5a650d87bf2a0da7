"""Timers over every backend: set, deleted, fired in order, kept, spread over subtasks."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import StateAccessError, StateDescriptorError, StateError, StateValueError
from holdfast.serde.keys import canonical_key, key_group_of
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.table import NO_KEY
from holdfast.state.timers.layout import FIRST_TIME, LAST_TIME, NEXT_TIME_PREFIX, Timer
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS, TimerTable
from tests.support.subtask import Subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore

MAX_PARALLELISM = 16


class CountingStore:
    """A store that counts its scans, and knows how many are open."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self.scans = 0
        self.open_scans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        self.open_scans += 1
        try:
            yield from self.store.scan(prefix, start)
        finally:
            self.open_scans -= 1


class Timed(Subtask):
    """Keyed state with timers as one subtask sees it, epoch after epoch."""

    def __init__(
        self,
        backend: Any,
        directory: Path,
        version: str | None = None,
        groups: range | None = None,
    ) -> None:
        super().__init__(
            backend, directory, version, max_parallelism=MAX_PARALLELISM, key_groups=groups
        )

    def open_store(self) -> CountingStore:
        return CountingStore(super().open_store())

    def limit(self, **limits: int) -> None:
        """From here on, with these limits as well."""
        self.settings |= limits
        self.fail()

    @property
    def timers(self) -> TimerTable:
        return self.state.timers(EVENT_TIMERS)

    def set(self, key: Any, *times: int, namespace: bytes = b"") -> None:
        self.current.key = key
        for time in times:
            self.timers.register(time, namespace)
        self.current.key = NO_KEY

    def delete(self, key: Any, *times: int, namespace: bytes = b"") -> None:
        self.current.key = key
        for time in times:
            self.timers.delete(time, namespace)
        self.current.key = NO_KEY

    def fire(
        self,
        until: int,
        then: Callable[[Timer], None] = lambda timer: None,
        registered_until: int | None = None,
    ) -> list[tuple[int, Any]]:
        """Times and keys of the due timers; `then` runs in between."""
        fired = []
        for timer in self.timers.due(until, registered_until):
            assert self.store.open_scans == 0
            fired.append((timer.time, timer.key))
            then(timer)
        return fired


@pytest.fixture
def subtask(backend: Any, tmp_path: Path) -> Any:
    subtask = Timed(backend, tmp_path / "store")
    yield subtask
    subtask.state.abort()


# Setting and firing


def test_timers_fire_in_the_order_of_time_and_only_when_due(subtask: Timed) -> None:
    for key in range(50):
        subtask.set(key, key * 7 % 50)
    assert subtask.fire(-1) == []
    assert [time for time, _ in subtask.fire(29)] == list(range(30))
    assert subtask.fire(29) == []
    assert [(time, key * 7 % 50) for time, key in subtask.fire(100)] == [
        (time, time) for time in range(30, 50)
    ]


def test_timers_of_one_time_fire_by_key_group_then_by_key_then_by_namespace(
    subtask: Timed,
) -> None:
    keys = [f"key-{i}" for i in range(60)]
    for key in reversed(keys):
        subtask.set(key, 5, namespace=b"\x02")
        subtask.set(key, 5, namespace=b"\x01")
        subtask.set(key, 5)
    given = list(subtask.timers.due(5))
    in_order = sorted(
        keys, key=lambda key: (key_group_of(key, MAX_PARALLELISM), len(key), key.encode())
    )
    assert given == [
        Timer(5, key, namespace) for key in in_order for namespace in (b"", b"\x01", b"\x02")
    ]


def test_a_timer_set_twice_fires_once(subtask: Timed) -> None:
    subtask.set("a", 5, 5)
    subtask.next_epoch()
    subtask.set("a", 5)
    subtask.set("a", 5, namespace=b"window")
    subtask.set("b", 5)
    assert len(subtask.fire(10)) == 3


def test_a_deleted_timer_does_not_fire(subtask: Timed) -> None:
    subtask.set("a", 1, 2, 3, 4)
    subtask.set("a", 2, namespace=b"w")
    subtask.delete("a", 2)
    subtask.next_epoch()
    subtask.delete("a", 3)
    subtask.delete("a", 4)
    subtask.set("a", 4)
    assert list(subtask.timers.due(9)) == [
        Timer(1, "a", b""),
        Timer(2, "a", b"w"),
        Timer(4, "a", b""),
    ]


def test_deleting_an_unknown_timer_changes_nothing(subtask: Timed) -> None:
    subtask.set("a", 5)
    subtask.delete("a", 4)
    subtask.delete("b", 5)
    subtask.delete("a", 5, namespace=b"w")
    assert subtask.fire(10) == [(5, "a")]


def test_negative_times_and_the_ends_of_time_sort_like_numbers(subtask: Timed) -> None:
    times = [FIRST_TIME, FIRST_TIME + 1, -(2**40), -256, -1, 0, 1, 255, 2**40, LAST_TIME]
    subtask.set("a", *reversed(times))
    subtask.next_epoch()
    assert subtask.timers.next_time == FIRST_TIME
    assert [time for time, _ in subtask.fire(-1)] == times[:5]
    assert subtask.timers.next_time == 0
    assert [time for time, _ in subtask.fire(2**70)] == times[5:]
    assert subtask.timers.next_time is None


@pytest.mark.parametrize(
    "keys",
    [
        [3, -1, 2**63 - 1],
        ["", "ü", "k" * 127, "k" * 128, "k" * 300, "k" * 700, "k" * 701],
        [("a", 1), ("a", None), (None, None), ("b" * 600, 2)],
        [0.0, -1.5, canonical_key(float("nan"))],
        [True, False],
        [datetime(2026, 11, 15, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)],
    ],
    ids=["int", "str", "tuple", "float", "bool", "datetime"],
)
def test_keys_of_any_type_and_length_come_back(subtask: Timed, keys: list[Any]) -> None:
    for number, key in enumerate(keys):
        subtask.set(key, number, number + 100, namespace=b"n" * number * 200)
    subtask.next_epoch()
    subtask.delete(keys[-1], len(keys) + 99, namespace=b"n" * (len(keys) - 1) * 200)
    given = list(subtask.timers.due(1000))
    assert given == [
        *(Timer(i, key, b"n" * i * 200) for i, key in enumerate(keys)),
        *(Timer(i + 100, key, b"n" * i * 200) for i, key in enumerate(keys[:-1])),
    ]
    assert [type(timer.key) for timer in given[: len(keys)]] == [type(key) for key in keys]
    subtask.next_epoch()
    assert subtask.fire(1000) == []


def test_both_time_domains_are_apart(subtask: Timed) -> None:
    event, processing = subtask.timers, subtask.state.timers(PROCESSING_TIMERS)
    subtask.current.key = "a"
    event.register(5)
    processing.register(5)
    processing.register(6)
    assert list(event.due(9)) == [Timer(5, "a", b"")]
    assert (event.next_time, processing.next_time) == (None, 5)
    subtask.next_epoch()
    assert subtask.fire(9) == []
    assert [timer.time for timer in subtask.state.timers(PROCESSING_TIMERS).due(9)] == [5, 6]


# What is refused


@pytest.mark.parametrize("time", [1.0, "1", None, True, datetime(2026, 1, 1)])
def test_a_time_that_is_no_int_is_refused(subtask: Timed, time: Any) -> None:
    subtask.current.key = "a"
    for use in (subtask.timers.register, subtask.timers.delete):
        with pytest.raises(TypeError, match="whole number of milliseconds, an int, not"):
            use(time)


def test_a_time_beyond_64_bits_is_refused(subtask: Timed) -> None:
    subtask.current.key = "a"
    for use in (subtask.timers.register, subtask.timers.delete):
        for time in (2**63, -(2**63) - 1):
            with pytest.raises(StateValueError, match="fit into 64 bits"):
                use(time)
    assert subtask.timers.cached() == 0


def test_timers_need_a_key(subtask: Timed) -> None:
    for use in (subtask.timers.register, subtask.timers.delete):
        with pytest.raises(StateAccessError, match="set and deleted while a key is set: "):
            use(5)


def test_states_of_users_cannot_take_the_names_of_timers(subtask: Timed) -> None:
    for name in (EVENT_TIMERS, PROCESSING_TIMERS):
        with pytest.raises(StateDescriptorError, match="reserved for the operator's timers"):
            subtask.state.register(ValueStateDescriptor(name, int))


# Changes while timers fire


@pytest.fixture(params=[1, 2, 3, 1000])
def chunk(request: pytest.FixtureRequest, subtask: Timed) -> int:
    subtask.limit(timers_at_once=request.param)
    return int(request.param)


@pytest.mark.usefixtures("chunk")
class TestChangesWhileTimersFire:
    def test_every_timer_comes_in_order_however_small_the_chunks(self, subtask: Timed) -> None:
        for key in range(40):
            subtask.set(key, key % 7, 50 - key % 3)
        subtask.next_epoch()
        fired = subtask.fire(100)
        assert [time for time, _ in fired] == sorted(time for time, _ in fired)
        assert len(fired) == len(set(fired)) == 80

    def test_a_timer_set_meanwhile_fires_in_its_place(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20, 30)
        subtask.next_epoch()

        def then(timer: Timer) -> None:
            if timer.time == 10:
                subtask.set("b", 25, 15, 30, 31)

        fired = subtask.fire(30, then)
        assert [time for time, _ in fired] == [10, 15, 20, 25, 30, 30]
        assert subtask.timers.next_time == 31
        assert subtask.fire(31) == [(31, "b")]

    def test_a_timer_set_before_the_last_one_comes_next(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20, 30)

        def then(timer: Timer) -> None:
            if timer == (20, "a", b""):
                subtask.set("b", 5, -5)

        fired = subtask.fire(30, then)
        assert fired == [(10, "a"), (20, "a"), (-5, "b"), (5, "b"), (30, "a")]

    def test_a_timer_set_again_while_it_fires_fires_again(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20)
        subtask.next_epoch()
        again = iter([True, True])

        def then(timer: Timer) -> None:
            if timer.time == 10 and next(again, False):
                subtask.set("a", 10)

        assert subtask.fire(30, then) == [(10, "a")] * 3 + [(20, "a")]
        subtask.next_epoch()
        assert subtask.fire(30) == []

    def test_a_chain_of_timers_runs_to_its_end(self, subtask: Timed) -> None:
        subtask.set("a", 0)
        subtask.set("b", 1000)
        assert subtask.fire(200, lambda timer: subtask.set("a", timer.time + 1)) == [
            (time, "a") for time in range(201)
        ]
        assert subtask.timers.next_time == 201

    def test_timers_set_meanwhile_are_many(self, subtask: Timed) -> None:
        subtask.set(0, 0, 30)

        def then(timer: Timer) -> None:
            if timer.time == 0:
                for key in range(100):
                    subtask.set(key, 1 + key % 50)

        fired = subtask.fire(40, then)
        expected = sorted([0, *(t for key in range(100) if (t := 1 + key % 50) <= 40)])
        # Key 29 sets for time 30 what is set for key 0 already, but key 0 has its own.
        assert [time for time, _ in fired] == sorted([*expected, 30])
        assert subtask.timers.next_time == 41

    def test_a_timer_set_too_late_waits_for_the_next_pass(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20, 30)
        subtask.next_epoch()

        def then(timer: Timer) -> None:
            if timer.time == 10:
                subtask.set("b", 15, 25)
                subtask.set("a", 10, 30)

        fired = subtask.fire(30, then, registered_until=9)
        assert fired == [(10, "a"), (20, "a"), (30, "a")]
        assert subtask.timers.next_time == 10
        subtask.set("a", 40)
        fired = subtask.fire(40, then=lambda timer: None)
        assert fired == [(10, "a"), (15, "b"), (25, "b"), (40, "a")]

    def test_a_timer_set_too_late_can_be_deleted_again(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20, 30)
        subtask.next_epoch()

        def then(timer: Timer) -> None:
            if timer.time == 10:
                subtask.set("b", 15, 25)
                subtask.delete("a", 30)
            elif timer.time == 20:
                subtask.delete("b", 15)
                subtask.set("a", 30)

        assert subtask.fire(30, then, registered_until=9) == [(10, "a"), (20, "a")]
        assert subtask.timers.next_time == 25
        assert subtask.fire(30) == [(25, "b"), (30, "a")]

    def test_a_due_timer_that_is_set_again_and_again_still_comes(self, subtask: Timed) -> None:
        subtask.set("a", 10, 20, 30, 40)
        subtask.next_epoch()
        fired = subtask.fire(40, lambda timer: subtask.set("a", 40), registered_until=9)
        assert fired == [(10, "a"), (20, "a"), (30, "a"), (40, "a")]
        assert subtask.timers.next_time == 40

    def test_a_timer_deleted_meanwhile_does_not_come(self, subtask: Timed) -> None:
        for key in range(20):
            subtask.set(key, key, 100 + key)
        subtask.next_epoch()
        deleted: set[tuple[int, int]] = set()

        def then(timer: Timer) -> None:
            for time in (timer.time + 1, timer.time + 4):
                subtask.delete(time, time)
                deleted.add((time, time))
            subtask.delete(timer.key, 100 + timer.key)

        fired = subtask.fire(50, then)
        assert [time for time, _ in fired] == [0, 2, 5, 7, 10, 12, 15, 17]
        assert subtask.timers.next_time == 101
        subtask.next_epoch()
        assert [time for time, _ in subtask.fire(200)] == [
            100 + key for key in range(20) if (key, key) not in fired
        ]

    def test_a_timer_set_and_deleted_meanwhile_does_not_come(self, subtask: Timed) -> None:
        subtask.set("a", 1, 2, 3, 8)

        def then(timer: Timer) -> None:
            if timer.time == 1:
                subtask.set("b", 4, 5, 6)
            elif timer.time == 2:
                subtask.delete("b", 4, 6)
                subtask.delete("a", 8)
            elif timer.time == 3:
                subtask.set("b", 6)

        fired = subtask.fire(10, then)
        assert fired == [(1, "a"), (2, "a"), (3, "a"), (5, "b"), (6, "b")]
        assert subtask.timers.next_time is None

    def test_a_pass_that_is_left_half_way_leaves_the_rest(self, subtask: Timed) -> None:
        subtask.set("a", 1, 2, 3, 4)
        subtask.next_epoch()
        for timer in subtask.timers.due(10):
            subtask.set("b", timer.time + 3)
            subtask.delete("a", 3)
            if timer.time == 2:
                break
        assert subtask.timers.next_time is not None
        assert subtask.timers.next_time <= 4
        subtask.next_epoch()
        assert sorted(subtask.fire(10)) == [(4, "a"), (4, "b"), (5, "b")]

    def test_state_may_be_flushed_and_emptied_while_timers_fire(self, subtask: Timed) -> None:
        subtask.limit(cache_limit=0)
        value: Any = subtask.state.register(ValueStateDescriptor("value", int))
        subtask.set("a", *range(10))

        def then(timer: Timer) -> None:
            subtask.current.key = timer.key
            value.update((value.value() or 0) + 1)
            subtask.set("b", timer.time + 1)
            subtask.state.evict_if_full()

        fired = subtask.fire(9, then)
        assert len(fired) == len(set(fired))
        assert {time for time, key in fired if key == "a"} == set(range(10))
        subtask.next_epoch()
        assert subtask.timers.next_time == 10


# More timers set meanwhile than fit into memory


@pytest.fixture
def small_chunks(subtask: Timed) -> None:
    subtask.limit(timers_at_once=4)


@pytest.mark.usefixtures("small_chunks")
class TestManyTimersSetMeanwhile:
    def test_they_are_left_to_the_store(self, subtask: Timed) -> None:
        subtask.set(0, 0, 90)
        batches: dict[int, list[Any]] = {}

        def then(timer: Timer) -> None:
            batches[id(subtask.current.batch)] = subtask.current.batch
            if timer.time == 0:
                for key in range(100):
                    subtask.set(key, 1 + key * 37 % 100)

        fired = subtask.fire(200, then)
        assert [time for time, _ in fired] == sorted([*range(101), 90])
        assert len(batches) > 20

    def test_one_that_was_deleted_before_can_be_set_again(self, subtask: Timed) -> None:
        subtask.set("a", 1, 50)

        def then(timer: Timer) -> None:
            if timer.time == 1:
                subtask.delete("a", 50)
                subtask.set("b", *range(2, 12))
            elif timer.time == 2:
                subtask.set("a", 50)

        fired = subtask.fire(100, then)
        assert fired == [(1, "a"), *((time, "b") for time in range(2, 12)), (50, "a")]

    def test_one_that_is_set_again_too_late_still_waits(self, subtask: Timed) -> None:
        subtask.set("a", 1, 50)

        def then(timer: Timer) -> None:
            if timer.time == 1:
                subtask.delete("a", 50)
                subtask.set("b", 2)
            elif timer.time == 2:
                subtask.set("a", 50)
                subtask.set("b", *range(3, 12))

        fired = subtask.fire(100, then, registered_until=20)
        assert fired == [(1, "a"), *((time, "b") for time in range(2, 12))]
        assert subtask.timers.next_time == 50
        assert subtask.fire(100) == [(50, "a")]


# Between epochs


def test_timers_outlive_a_commit_and_fired_ones_do_not_come_back(subtask: Timed) -> None:
    subtask.set("a", 1, 5, 9)
    subtask.next_epoch()
    assert subtask.fire(5) == [(1, "a"), (5, "a")]
    subtask.next_epoch()
    assert subtask.timers.next_time == 9
    assert subtask.fire(5) == []
    assert subtask.fire(9) == [(9, "a")]
    subtask.next_epoch()
    assert [key for key, _ in subtask.store.scan(b"") if key >= b"\x00\x01"] == []


def test_an_abort_leaves_nothing_of_the_epoch(subtask: Timed) -> None:
    subtask.set("a", 1, 5)
    subtask.next_epoch()
    subtask.set("b", 2)
    subtask.delete("a", 5)
    assert subtask.fire(1) == [(1, "a")]
    subtask.fail()
    assert subtask.timers.next_time == 1
    assert subtask.fire(9) == [(1, "a"), (5, "a")]


def test_timers_exist_once_they_were_asked_for(subtask: Timed) -> None:
    assert not subtask.state.has_timers(EVENT_TIMERS)
    table = subtask.state.timers(EVENT_TIMERS)
    assert subtask.state.timers(EVENT_TIMERS) is table
    assert subtask.state.has_timers(EVENT_TIMERS)
    subtask.fail()
    assert not subtask.state.has_timers(EVENT_TIMERS)
    subtask.state.timers(EVENT_TIMERS)
    subtask.next_epoch()
    assert subtask.state.has_timers(EVENT_TIMERS)
    assert not subtask.state.has_timers(PROCESSING_TIMERS)
    assert subtask.state.state_descriptions() == [
        {"name": EVENT_TIMERS, "kind": "timers", "schema": []}
    ]


# The time of the next one


def test_the_next_time_is_known_without_a_scan(subtask: Timed) -> None:
    subtask.set("a", 50, 60)
    subtask.next_epoch()
    before = subtask.store.scans
    assert subtask.timers.next_time == 50
    assert subtask.fire(49) == []
    subtask.set("b", 40)
    assert subtask.timers.next_time == 40
    assert subtask.fire(39) == []
    assert subtask.store.scans == before
    assert subtask.fire(50) == [(40, "b"), (50, "a")]
    assert subtask.timers.next_time == 60
    assert subtask.fire(60) == [(60, "a")]
    subtask.next_epoch()
    before = subtask.store.scans
    assert subtask.timers.next_time is None
    assert subtask.fire(LAST_TIME) == []
    assert subtask.store.scans == before


def test_the_next_time_is_exact_after_a_pass_even_if_the_next_one_was_deleted(
    subtask: Timed,
) -> None:
    subtask.set("a", 1, 10, 20)
    subtask.delete("a", 10)
    assert subtask.timers.next_time == 1
    subtask.fire(1)
    assert subtask.timers.next_time == 20
    subtask.delete("a", 20)
    assert subtask.timers.next_time == 20
    subtask.set("a", 5, 30)
    subtask.fire(5, lambda timer: subtask.delete("a", 30))
    assert subtask.timers.next_time is None


def test_a_pass_reads_each_key_group_once_per_chunk(subtask: Timed) -> None:
    subtask.limit(timers_at_once=100)
    for key in range(250):
        subtask.set(key, key)
    subtask.next_epoch()
    before = subtask.store.scans
    assert len(subtask.fire(1000)) == 250
    assert subtask.store.scans - before <= 3 * MAX_PARALLELISM


# Undoing what an element did


def test_what_a_failed_element_did_to_timers_is_undone(subtask: Timed) -> None:
    subtask.set("a", 1, 2, 3)
    subtask.next_epoch()
    table = subtask.timers
    subtask.set("a", 10, 11)
    subtask.delete("a", 1)
    saved = table.save_point("a")
    subtask.set("a", 1, 5, -7, 10)
    subtask.delete("a", 2, 11, 5)
    subtask.set("a", 5)
    table.roll_back("a", saved)
    assert table.next_time == 1
    assert subtask.fire(100) == [(2, "a"), (3, "a"), (10, "a"), (11, "a")]


def test_a_table_that_a_failed_element_made_ends_up_empty(subtask: Timed) -> None:
    subtask.set("a", 1, 2)
    table = subtask.timers
    table.roll_back("a", table.save_point(NO_KEY))
    assert table.cached() == 0
    assert subtask.fire(9) == []


def test_a_failed_callback_is_undone_and_its_timer_stays_fired(subtask: Timed) -> None:
    subtask.set("a", 1, 2, 3)
    table = subtask.timers

    def then(timer: Timer) -> None:
        saved = table.save_point(timer.key)
        subtask.set("a", timer.time + 10)
        subtask.delete("a", 3)
        if timer.time in (1, 12):
            table.roll_back(timer.key, saved)

    assert subtask.fire(12, then) == [(1, "a"), (2, "a"), (12, "a")]
    assert table.next_time is None
    subtask.next_epoch()
    assert subtask.fire(100) == []


def test_remembering_costs_by_the_changes_of_the_element(subtask: Timed) -> None:
    table = subtask.timers
    subtask.set("a", *range(50_000))
    subtask.current.key = "a"
    tracemalloc.start()
    for time in range(1000):
        saved = table.save_point("a")
        table.register(-1 - time)
        table.roll_back("a", saved)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert table.cached() == 50_000


# Memory


def test_states_read_the_keys_of_a_chunk_in_one_go(subtask: Timed) -> None:
    subtask.limit(timers_at_once=10)
    for key in range(25):
        subtask.set(key, key)
    batches: list[list[int]] = []

    def then(timer: Timer) -> None:
        if not batches or batches[-1] is not subtask.current.batch:
            batches.append(subtask.current.batch)

    subtask.fire(100, then)
    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert subtask.current.batch == []


def test_caches_are_kept_within_bounds_between_chunks(subtask: Timed) -> None:
    subtask.limit(timers_at_once=10, cache_limit=15)
    value: Any = subtask.state.register(ValueStateDescriptor("value", int))
    for key in range(100):
        subtask.set(key, key)
    cached = []

    def then(timer: Timer) -> None:
        subtask.current.key = timer.key
        value.update(timer.time)
        subtask.timers.register(timer.time + 1000)
        cached.append(sum(table.cached() for table in subtask.state.tables))

    assert len(subtask.fire(100, then)) == 100
    assert max(cached) <= 60
    subtask.next_epoch()
    assert subtask.timers.next_time == 1000


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["some", "a million"]
)
def test_however_many_timers_fire_they_take_little_memory(
    backend: Any, tmp_path: Path, count: int
) -> None:
    subtask = Timed(backend, tmp_path / "store")
    table, current = subtask.timers, subtask.current
    for key in range(count):
        current.key = key
        table.register(key % 1000)
    subtask.next_epoch()
    tracemalloc.start()
    fired = sum(1 for _ in subtask.timers.due(499))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fired == count // 2
    # What is held are the places of fired timers, for the commit.
    assert held < fired * 80
    assert peak - held < 12_000_000
    subtask.state.abort()


# Other numbers of subtasks


def stores_of(
    backend: Any, root: Path, snapshots: list[Path], parallelism: int, *, whole: bool = False
) -> list[Timed]:
    """Open subtasks, made of snapshots of another number of subtasks."""
    subtasks = []
    for index in range(parallelism):
        groups = key_groups(index, parallelism, MAX_PARALLELISM)
        directory = root / f"{parallelism}-{index}"
        restore_store(
            backend,
            [snapshots[index]] if whole else snapshots,
            directory,
            version="restored",
            key_groups=groups,
            whole=whole,
            operator_state=None,
        )
        subtasks.append(Timed(backend, directory, "restored", groups))
    return subtasks


def commit_all(subtasks: list[Timed], root: Path) -> list[Path]:
    """Snapshots of all subtasks, which are closed."""
    snapshots = []
    for index, subtask in enumerate(subtasks):
        snapshots.append(root / f"snapshot-{len(subtasks)}-{index}")
        subtask.state.commit("done", snapshots[-1])
    return snapshots


def test_timers_move_with_their_keys_from_1_to_3_to_2_subtasks(
    backend: Any, tmp_path: Path
) -> None:
    one = Timed(backend, tmp_path / "one")
    # States get other ids in stores that are put together.
    one.state.register(ValueStateDescriptor("value", int))
    keys = [f"key-{i}" for i in range(40)] + ["k" * 700]
    for number, key in enumerate(keys):
        one.set(key, number, number + 100, 1000 + number)
    three = stores_of(backend, tmp_path, commit_all([one], tmp_path), 3)
    for index, subtask in enumerate(three):
        own = [
            (number, key)
            for number, key in enumerate(keys)
            if subtask_of(key_group_of(key, MAX_PARALLELISM), 3, MAX_PARALLELISM) == index
        ]
        assert subtask.timers.next_time == own[0][0]
        assert subtask.fire(99) == own
        assert subtask.timers.next_time == 100 + own[0][0]
    two = stores_of(backend, tmp_path, commit_all(three, tmp_path), 2)
    fired = [subtask.fire(999) for subtask in two]
    assert sorted(fired[0] + fired[1]) == [(100 + i, key) for i, key in enumerate(keys)]
    assert min(subtask.timers.next_time or 0 for subtask in two) == 1000
    for subtask in two:
        subtask.state.abort()


def test_after_rescaling_the_next_time_is_unknown_and_looked_for(
    backend: Any, tmp_path: Path
) -> None:
    one = Timed(backend, tmp_path / "one")
    one.set("a", 70, 80)
    [subtask] = stores_of(backend, tmp_path, commit_all([one], tmp_path), 1)
    assert list(subtask.store.scan(NEXT_TIME_PREFIX)) == []
    before = subtask.store.scans
    assert subtask.timers.next_time == 70
    assert subtask.store.scans - before == MAX_PARALLELISM
    subtask.next_epoch()
    assert len(list(subtask.store.scan(NEXT_TIME_PREFIX))) == 1
    before = subtask.store.scans
    assert subtask.timers.next_time == 70
    assert subtask.store.scans == before
    subtask.state.abort()


def test_a_store_that_is_taken_over_whole_knows_its_next_time(backend: Any, tmp_path: Path) -> None:
    one = Timed(backend, tmp_path / "one")
    one.set("a", 70, 80)
    snapshots = commit_all([one], tmp_path)
    [subtask] = stores_of(backend, tmp_path, snapshots, 1, whole=True)
    before = subtask.store.scans
    assert subtask.timers.next_time == 70
    assert subtask.store.scans == before
    assert subtask.fire(100) == [(70, "a"), (80, "a")]
    subtask.state.abort()


# The keys of a state

STATES = [
    ValueStateDescriptor("value", int),
    ListStateDescriptor("list", int),
    MapStateDescriptor("map", str, int),
]


def fill(state: Any, entries: int) -> None:
    match state:
        case _ if hasattr(state, "put"):
            state.put_all({f"{i:04}": i for i in range(entries)})
        case _ if hasattr(state, "add_all"):
            state.add_all(range(entries))
        case _:
            state.update(entries)


@pytest.mark.parametrize("descriptor", STATES, ids=lambda descriptor: descriptor.name)
@pytest.mark.parametrize("limit", [1, 2, 7, 50_000])
def test_the_keys_of_a_state_are_given_once_each_in_chunks(
    subtask: Timed, descriptor: Any, limit: int
) -> None:
    subtask.limit(keys_at_once=limit)
    for epoch in range(2):
        state = subtask.state.register(descriptor)
        for number in range(20):
            subtask.current.key = f"key-{number}"
            fill(state, 1 + number % 3 * 40)
            if number == 7 and epoch:
                state.clear()
        if not epoch:
            subtask.next_epoch()
    chunks = list(subtask.state.keys_of(descriptor.name))
    keys = [key for chunk in chunks for key in chunk]
    assert sorted(keys) == sorted(f"key-{number}" for number in range(20) if number != 7)
    assert {len(chunk) for chunk in chunks[:-1]} <= {limit}
    assert len(chunks) == -(-19 // limit)


@pytest.mark.parametrize("descriptor", STATES, ids=lambda descriptor: descriptor.name)
def test_any_state_may_be_changed_between_two_chunks_of_keys(
    subtask: Timed, descriptor: Any
) -> None:
    subtask.limit(keys_at_once=3)
    state = subtask.state.register(descriptor)
    keys = [(number, None) for number in range(40)]
    for subtask.current.key in keys:
        fill(state, 50)
    given, cleared = [], set()
    for chunk in subtask.state.keys_of(descriptor.name):
        assert subtask.store.open_scans == 0
        given += chunk
        for key in chunk:
            subtask.current.key = key
            fill(state, 60)
            subtask.current.key = other = (39 - key[0], None)
            state.clear()
            if other not in given:
                cleared.add(other)
    assert len(given) == len(set(given))
    assert set(given) == set(keys) - cleared


def test_a_key_that_changes_its_entries_between_two_chunks_is_not_lost(subtask: Timed) -> None:
    subtask.limit(keys_at_once=1)
    state: Any = subtask.state.register(MapStateDescriptor("map", str, int))
    for subtask.current.key in range(6):
        state.put("m", 1)
    given: list[int] = []
    for [key] in subtask.state.keys_of("map"):
        given.append(key)
        for subtask.current.key in set(range(6)) - set(given):
            state.remove("m")
            state.put("a", 1)
    assert sorted(given) == list(range(6))


def test_only_registered_states_have_keys_to_give(subtask: Timed) -> None:
    subtask.state.register(ValueStateDescriptor("value", int))
    assert list(subtask.state.keys_of("value")) == []
    with pytest.raises(StateError, match="no state 'other' was registered"):
        subtask.state.keys_of("other")
