"""How much a sweep looks at, where it goes on, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.timers.layout import FIRST_TIME
from holdfast.state.ttl.layout import SWEEP_PREFIX, Cursor
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.api.ttl import StateTtlConfigBuilder
    from holdfast.state.store.protocol import StoreStatistics

TTL = 400
"""A pass may begin every 100 ms."""
ROCKSDB = EmbeddedRocksDBStateBackend()


def ttl() -> StateTtlConfigBuilder:
    return StateTtlConfig.new_builder(TTL)


class SteppingClock(ManualClock):
    """Goes forward whenever it is asked."""

    step = 0

    def now_ms(self) -> int:
        self.advance(self.step)
        return super().now_ms()


class Store:
    """A state with a time to live, epoch after epoch, and how it is swept."""

    def __init__(self, directory: Path, config: StateTtlConfig, backend: Any = None) -> None:
        self.directory, self.backend = directory, backend or HashMapStateBackend()
        self.descriptor: Any = ValueStateDescriptor("v", int, ttl=config)
        self.clock = SteppingClock(0)
        self.seconds = 0.0
        self.tick = 0.0
        """Seconds that go by whenever they are asked for."""
        self.records = 0
        self.incremental = False
        self.version: str | None = None
        self.epoch = 0
        self.open()

    def now(self) -> float:
        self.seconds += self.tick
        return self.seconds

    def open(self) -> None:
        self.epoch += 1
        self.current = CurrentKey()
        self.store = open_store(self.backend, self.directory, self.version)
        self.state = KeyedStateBackend(
            self.store,
            max_parallelism=8,
            epoch=self.epoch,
            current=self.current,
            ttl=TtlContext(
                ClockTime(self.clock),
                records=lambda: self.records,
                incremental_snapshots=self.incremental,
                seconds=self.now,
            ),
        )
        self.handle: Any = self.state.register(self.descriptor)

    def write(self, keys: range) -> None:
        for self.current.key in keys:
            self.handle.update(1)

    def commit(self, snapshot: Path | None = None) -> StoreStatistics:
        self.version = f"{self.epoch}-test"
        statistics = self.state.commit(self.version, snapshot)
        self.removed = self.state.expired_removed
        return statistics

    def end(self, snapshot: Path | None = None) -> int:
        """End the epoch; how many entries it has removed."""
        self.commit(snapshot)
        self.open()
        return self.removed

    def epochs(self, count: int) -> list[int]:
        """Epochs in which nothing happens; what each has removed."""
        return [self.end() for _ in range(count)]

    def filled(self, count: int) -> None:
        """Entries that have expired, and a pass that has ended before they came."""
        self.end()
        self.write(range(count))
        self.end()
        self.clock.advance(TTL)

    @property
    def cursor(self) -> Cursor:
        return Cursor.decoded(self.store.get(SWEEP_PREFIX + b"v\0ttl"))

    def entries(self) -> int:
        return sum(1 for key, _ in self.store.scan(b"") if key[:2] != b"\0\0")


@pytest.fixture
def stores() -> Iterator[list[Store]]:
    made: list[Store] = []
    yield made
    for store in made:
        store.state.abort()


@pytest.fixture
def make(tmp_path: Path, stores: list[Store]) -> Any:
    def make(config: StateTtlConfigBuilder, backend: Any = None) -> Store:
        store = Store(tmp_path / f"store-{len(stores)}", config.build(), backend)
        stores.append(store)
        return store

    return make


# Passes


def test_a_pass_goes_on_where_the_epoch_before_has_stopped(make: Any) -> None:
    store = make(ttl())
    store.filled(2500)
    assert store.epochs(4) == [1000, 1000, 500, 0]
    assert store.entries() == 0


def test_what_is_alive_stays(make: Any) -> None:
    store = make(ttl())
    store.filled(700)
    store.write(range(0, 700, 2))
    assert store.end() == 350
    assert store.entries() == 350
    store.current.key = 2
    assert store.handle.value() == 1


def test_a_pass_begins_when_a_quarter_of_the_ttl_has_gone_by(make: Any) -> None:
    store = make(ttl())
    store.write(range(10))
    store.end()
    assert store.cursor == Cursor(began=0, looked=10, removed=0, place=b"")
    store.clock.set(99)
    store.end()
    assert store.cursor.began == 0
    store.clock.set(100)
    store.end()
    assert store.cursor.began == 100


def test_the_period_of_passes_can_be_shorter_and_not_longer(make: Any) -> None:
    for period, next_at in (("20 ms", 20), ("1 h", 100), (0, 100)):
        store = make(ttl().cleanup_in_rocksdb_compact_filter(1000, period))
        store.end()
        store.clock.set(next_at - 1)
        store.end()
        assert store.cursor.began == 0
        store.clock.set(next_at)
        store.end()
        assert store.cursor.began == next_at


def test_a_clock_that_goes_back_holds_no_pass_up(make: Any) -> None:
    store = make(ttl())
    store.clock.set(1_000_000)
    store.end()
    store.clock.set(500)
    store.end()
    assert store.cursor.began == 500


def test_a_pass_takes_its_share_of_the_epoch_and_no_more(make: Any) -> None:
    store = make(ttl())
    store.filled(20_000)
    store.seconds += 100.0
    store.tick = 0.25  # asked for once before the sweep, and after every 1,000 entries
    removed = store.end()
    assert 10_000 < removed < 14_000
    store.tick = 0.0
    store.seconds += 100.0
    assert store.end() == 20_000 - removed


def test_however_short_an_epoch_is_some_entries_are_looked_at(make: Any) -> None:
    store = make(ttl().cleanup_in_rocksdb_compact_filter(300))
    store.filled(5000)
    store.tick = 10.0
    assert store.end() == 1200
    assert store.end() == 1200


def test_time_is_asked_for_again_after_so_many_entries(make: Any) -> None:
    store = make(ttl().cleanup_in_rocksdb_compact_filter(10))
    store.end()
    store.write(range(100))
    store.end()
    store.clock.set(TTL - 10)
    # Every look at the time takes a while: entries expire while the sweep is under way.
    store.clock.step = 1
    assert 0 < store.end() < 100


def test_the_share_is_for_all_states_together(make: Any) -> None:
    store = make(ttl())
    store.filled(6000)
    other: Any = store.state.register(ListStateDescriptor("w", int, ttl=ttl().build()))
    store.clock.set(0)
    for store.current.key in range(6000):
        other.add(1)
    store.clock.set(TTL)
    store.seconds += 100.0
    store.tick = 0.5
    assert 4000 <= store.end() <= 8000
    assert store.cursor.removed >= 2000
    assert Cursor.decoded(store.store.get(SWEEP_PREFIX + b"w\0ttl")).removed >= 2000


def test_only_states_that_are_used_are_swept(make: Any) -> None:
    store = make(ttl())
    store.filled(10)
    store.state.abort()
    unused = KeyedStateBackend(
        open_store(store.backend, store.directory, store.version),
        max_parallelism=8,
        epoch=9,
        current=CurrentKey(),
        ttl=TtlContext(ClockTime(store.clock)),
    )
    store.version = "unused"
    unused.commit("unused")
    assert unused.expired_removed == 0
    store.open()
    assert store.end() == 10


def test_without_background_cleanup_only_reads_remove(make: Any) -> None:
    store = make(ttl().disable_cleanup_in_background())
    store.filled(10)
    assert store.end() == 0
    assert store.entries() == 10
    store.current.key = 3
    assert store.handle.value() is None
    store.end()
    assert store.entries() == 9


def test_a_sweep_is_undone_with_its_epoch(make: Any) -> None:
    store = make(ttl())
    store.filled(10)
    before = dict(store.store.scan(b""))
    store.state.flush()
    store.state._sweep.run(snapshot=False)
    assert store.state.expired_removed == 10
    store.state.abort()
    store.open()
    assert dict(store.store.scan(b"")) == before


def test_event_time_that_is_not_known_begins_no_pass(make: Any) -> None:
    store = make(ttl())
    store.write(range(3))
    store.clock.set(FIRST_TIME)
    store.end()
    assert store.cursor == Cursor()


def test_a_cursor_reads_as_it_was_written() -> None:
    cursor = Cursor(-5, 2**40, 3, b"place")
    assert Cursor.decoded(cursor.encoded()) == cursor
    assert Cursor.decoded(None) == Cursor()


# Lists and maps


def test_of_a_chunk_only_elements_go_that_have_expired(make: Any) -> None:
    store = make(ttl())
    store.descriptor = ListStateDescriptor("list", int, ttl=ttl().build())
    store.state.abort()
    store.open()
    for store.current.key in ("mixed", "old", "new"):
        if store.current.key != "new":
            store.clock.set(0)
            store.handle.add_all([1, 2])
        if store.current.key != "old":
            store.clock.set(300)
            store.handle.add(3)
    store.end()
    store.clock.set(TTL)
    assert store.end() == 4
    assert store.entries() == 2
    found = {}
    for store.current.key in ("mixed", "old", "new"):
        found[store.current.key] = store.handle.get()
    assert found == {"mixed": [3], "old": [], "new": [3]}


def test_entries_of_maps_are_swept_one_by_one(make: Any) -> None:
    store = make(ttl())
    store.descriptor = MapStateDescriptor("map", str, int, ttl=ttl().build())
    store.state.abort()
    store.open()
    store.current.key = "k"
    store.handle.put_all({"a": 1, "none": None})
    store.clock.set(300)
    store.handle.put("b", 2)
    store.end()
    store.clock.set(TTL)
    assert store.end() == 2
    store.current.key = "k"
    assert dict(store.handle.items()) == {"b": 2}


# Incremental cleanup


def test_incremental_cleanup_looks_at_so_many_entries_per_access(make: Any) -> None:
    store = make(ttl().cleanup_incrementally(5))
    store.filled(100)
    store.state.abort()
    store.open()
    assert store.end() == 0
    store.current.key = -1
    for _ in range(3):
        store.handle.value()
    assert store.end() == 15
    assert store.entries() == 85


def test_incremental_cleanup_looks_at_more_for_every_record_if_asked_to(make: Any) -> None:
    store = make(ttl().cleanup_incrementally(5, True))
    store.filled(100)
    store.records = 4
    assert store.end() == 20
    store.current.key = -1
    store.handle.value()
    assert store.end() == 25


def test_incremental_cleanup_wraps_around_and_looks_at_nothing_twice(make: Any) -> None:
    store = make(ttl().cleanup_incrementally(1, True))
    store.write(range(10))
    store.records = -10 + 6  # six in all
    store.end()
    assert store.cursor.looked == 6
    store.clock.advance(TTL)
    store.records = 8
    assert store.end() == 8
    assert store.cursor.looked == 4
    store.records = 1000
    assert store.end() == 2
    assert store.entries() == 0


# Full snapshots


def test_before_a_snapshot_all_that_has_expired_goes_if_asked_to(make: Any, tmp_path: Path) -> None:
    store = make(ttl().cleanup_full_snapshot().disable_cleanup_in_background())
    store.filled(3000)
    assert store.end() == 0
    assert store.end(tmp_path / "snapshot") == 3000
    with open_snapshot(store.backend, tmp_path / "snapshot") as snapshot:
        assert all(key[:2] == b"\0\0" for key, _ in snapshot.scan(b""))


def test_incremental_snapshots_are_made_of_what_is_there(make: Any, tmp_path: Path) -> None:
    store = make(ttl().cleanup_full_snapshot().disable_cleanup_in_background(), ROCKSDB)
    store.filled(50)
    store.incremental = True
    store.state.abort()
    store.open()
    assert store.end(tmp_path / "snapshot") == 0


# Room on the disk


@pytest.mark.parametrize("backend", [HashMapStateBackend(), ROCKSDB], ids=["hashmap", "rocksdb"])
def test_a_store_is_smaller_when_most_of_it_has_expired(make: Any, backend: Any) -> None:
    store = make(ttl(), backend)
    store.end()
    store.write(range(20_000))
    full = store.commit()
    store.open()
    store.clock.advance(TTL)
    store.write(range(100))
    store.seconds += 1000.0
    swept = store.commit()
    store.open()
    assert store.removed == 19_900
    assert swept.entries < 200
    assert swept.bytes_on_disk < full.bytes_on_disk / 4
    assert store.entries() == 100


def test_files_are_left_alone_where_little_has_expired(make: Any) -> None:
    store = make(ttl())
    store.end()
    store.write(range(20_000))
    store.end()
    store.clock.advance(TTL)
    store.write(range(15_000))
    store.seconds += 1000.0
    assert store.end() == 5000
    assert [path.name for path in store.directory.glob("*.mdb")] == ["state-1.mdb"]


class BrokenDisk:
    """A database that cannot merge its files."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.tried: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def compact_range(self, begin: bytes, end: bytes) -> None:
        self.tried.append(begin)
        raise OSError("No space left on device")


def test_a_store_that_cannot_get_smaller_is_committed_all_the_same(make: Any) -> None:
    store = make(ttl(), ROCKSDB)
    store.filled(100)
    broken = store.store._database = BrokenDisk(store.store._database)
    assert store.end() == 100
    assert broken.tried == [b"\x00\x01"]
    assert store.entries() == 0
