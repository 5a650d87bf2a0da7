"""What a worker process keeps between epochs, and what it may use of it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CheckpointedFunction,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import StoreVersionError, UserFunctionError
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.task import StageTask
from holdfast.runtime.worker import (
    COLLECT_EVERY,
    IDLE_SECONDS,
    UNUSED_SECONDS,
    Garbage,
    IdleWatch,
    JobRun,
    TaskKey,
    WorkerTasks,
    close_functions,
    memory_to_keep,
    resident_bytes,
)
from holdfast.state.store.directories import claim_job, delete_job, tidy_job
from holdfast.state.store.process import ProcessIdentity
from holdfast.testing.clock import ManualClock
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks
from tests.support.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.runtime.report import TaskReport

BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]
LOG: list[str] = []
both_backends = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    LOG.clear()


class Counted(KeyedProcessFunction):
    """Counts the rows of a key in state, and all rows in an attribute."""

    def __init__(self) -> None:
        self.seen = 0

    def open(self, ctx: Any) -> None:
        LOG.append("open")
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self.rows = ctx.get_metrics_group().counter("rows")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n < 0:
            raise ValueError("negative")
        self.seen += 1
        self.rows.inc()
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value() * 1000 + self.seen

    def close(self) -> None:
        LOG.append("close")


class Desk:
    """Epochs of one subtask, in a worker that the test chooses."""

    def __init__(self, function: Any, directory: Path, backend: Any = None) -> None:
        program = Program(backend=backend)
        program.collect(program.source(ROWS).key_by("k").process(function, ROWS).uid("count"))
        self.tasks = Tasks(program, directory)
        self.workers = [Workers(1), Workers(1)]
        self.found: list[Any] = []

    def run(self, *elements: Any, worker: int = 0, **plan: Any) -> TaskReport:
        """An epoch that ends well."""
        report = self.unseen(*elements, worker=worker, **plan)
        for uid, store in report.stores.items():
            self.tasks.expected[uid, 0] = store.version
        return report

    def unseen(
        self, *elements: Any, worker: int = 0, again: bool = False, **plan: Any
    ) -> TaskReport:
        """An epoch that the driver takes no notice of."""
        self.tasks.epoch += 0 if again else 1
        self.tasks.attempt += 1
        epoch = self.tasks.epoch_plan(**plan)
        identity = TaskIdentity(0, 0, self.tasks.attempt)
        batches = list(self.tasks.batches(elements))
        rows, report = self.workers[worker].run(
            self.tasks.stage, epoch, identity, batches, self.tasks.clock
        )
        self.found = [tuple(row.values()) for batch in rows for row in batch.to_pylist()]
        return report


# Functions stay open, and cached values count only while nobody else has written


@both_backends
def test_a_function_is_opened_once_per_worker_and_keeps_its_attributes(
    backend: Any, tmp_path: Path
) -> None:
    desk = Desk(Counted(), tmp_path, backend)
    for epoch in range(1, 6):
        desk.run(("a", 1), worker=epoch % 2)
        in_this_worker = (epoch + 1) // 2
        assert desk.found == [("a", epoch * 1000 + in_this_worker)]
    assert LOG == ["open", "open"]


def test_figures_of_an_epoch_start_again_though_the_function_stays(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    reports = [desk.run(("a", 1), ("b", 1)), desk.run(("a", 1)), desk.run()]
    figures = [report.operators.get("count") for report in reports]
    assert [f and (f.opened, f.records_in, f.metrics.counters["rows"]) for f in figures] == [
        (1, 2, 2),
        (0, 1, 1),
        None,
    ]


def test_values_are_not_read_again_while_the_store_is_as_this_worker_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.state.store.lmdb import LmdbStore

    reads: list[int] = []
    get_many = LmdbStore.get_many

    def counted(self: LmdbStore, keys: Any) -> Any:
        reads.append(len(keys))
        return get_many(self, keys)

    monkeypatch.setattr(LmdbStore, "get_many", counted)
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1), ("b", 1))
    assert reads == [2]
    desk.run(("a", 1), ("c", 1))
    assert reads == [2, 1], "only the key that is not cached"
    desk.run(("a", 1), worker=1)
    reads.clear()
    desk.run(("a", 1), ("b", 1))
    assert reads == [2], "another worker has written since"
    assert desk.found == [("a", 4005), ("b", 2006)]


def test_a_stale_cache_planted_on_purpose_is_not_used(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    [(task, _)] = desk.workers[0].workers[0]._tasks.values()
    state = task._kept[0].state
    assert state is not None
    state.tables[0]._cache["a"] = 77
    desk.run(("a", 1), worker=1)
    desk.run(("a", 1))
    assert desk.found == [("a", 3002)]


def test_nothing_of_a_failed_epoch_is_used_again(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    with pytest.raises(UserFunctionError, match="negative"):
        desk.run(("a", 1), ("a", -1))
    assert LOG == ["open", "close"]
    desk.run(("a", 1))
    assert desk.found == [("a", 2001)]


def test_nothing_of_an_epoch_that_runs_again_is_used(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    desk.run()
    # Spark runs a task again that had come to its end: the same epoch, in the same worker.
    desk.unseen(("z", 1), again=True, expected={("count", 0): "1-1"})
    assert LOG == ["open", "close", "open"]


def test_a_task_whose_outcome_was_not_taken_is_not_kept(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    report = desk.unseen(("a", 1), worker=1)
    version = report.stores["count"].version
    assert version == "2-2"
    # The driver has taken the outcome of another attempt at that epoch.
    with pytest.raises(StoreVersionError):
        desk.unseen(("a", 1), worker=1, expected={("count", 0): "2-9"})
    assert LOG.count("open") == 3


def test_a_kept_store_that_is_at_another_version_is_refused(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    with pytest.raises(StoreVersionError):
        desk.run(("a", 1), expected={("count", 0): "7-7"})


def test_another_attempt_of_the_job_opens_its_own_functions(tmp_path: Path) -> None:
    desk = Desk(Counted(), tmp_path)
    desk.run(("a", 1))
    desk.run(("a", 1), job_attempt="2", expected={})
    assert LOG == ["open", "close", "open"]
    assert desk.found == [("a", 1001)]


class Lazy(Counted):
    """Asks for its states when rows name them."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        state = self.ctx.get_state(ValueStateDescriptor(value.k, int))
        state.update((state.value() or 0) + 1)
        yield value.k, state.value()


@both_backends
def test_states_that_workers_meet_in_another_order_keep_their_ids(
    backend: Any, tmp_path: Path
) -> None:
    desk = Desk(Lazy(), tmp_path, backend)
    desk.run(("a", 1))
    desk.run(("b", 1), worker=1)
    desk.run(("c", 1))
    desk.run(("b", 1))
    assert desk.found == [("b", 2)]
    desk.run(("c", 1), ("a", 1), worker=1)
    assert desk.found == [("c", 2), ("a", 2)]


class Buffered(KeyedProcessFunction, CheckpointedFunction):
    """Loads its list as Flink's documentation shows it: by appending."""

    def __init__(self) -> None:
        self.buffer: list[int] = []

    def open(self, ctx: Any) -> None:
        LOG.append("open")

    def initialize_state(self, context: Any) -> None:
        LOG.append("initialize")
        store = context.get_operator_state_store()
        self.state = store.get_list_state(ListStateDescriptor("buffer", int))
        for element in self.state.get():
            self.buffer.append(element)

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.buffer)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.buffer.append(value.n)
        yield value.k, sum(self.buffer)


@both_backends
def test_operator_state_of_another_worker_is_loaded_by_a_new_function(
    backend: Any, tmp_path: Path
) -> None:
    desk = Desk(Buffered(), tmp_path, backend)
    desk.run(("a", 1))
    desk.run(("a", 2))
    assert LOG == ["initialize", "open"]
    desk.run(("a", 4), worker=1)
    assert desk.found == [("a", 7)]
    desk.run(("a", 8))
    assert desk.found == [("a", 15)]
    desk.run(("a", 16))
    assert desk.found == [("a", 31)]
    assert LOG == ["initialize", "open"] * 3


RULES = MapStateDescriptor("rules", str, int)


class Ruled(KeyedBroadcastProcessFunction):
    """Keeps the handle that it was given first."""

    rules: Any = None

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.rules = self.rules or ctx.get_broadcast_state(RULES)
        kept, fresh = self.rules.get("n"), ctx.get_broadcast_state(RULES).get("n")
        yield value.k, int(kept == fresh)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, value.n)


def test_a_handle_to_broadcast_state_shows_what_another_worker_has_written(tmp_path: Path) -> None:
    program = Program(parallelism=1)
    data, control = program.source(ROWS), program.source(ROWS)
    ruled = data.key_by("k").connect(control.broadcast(RULES)).process(Ruled(), ROWS)
    found = program.collect(ruled.uid("ruled"))
    run = program.start(tmp_path)
    for n in range(1, 9):
        run.push([("a", n)], [("n", n)])
    assert found == [("a", 1)] * 8
    assert run.workers.met_again > 4


class Lists(KeyedProcessFunction):
    """Adds to a list and a map, and takes from them, in every epoch."""

    def open(self, ctx: Any) -> None:
        self.list = ctx.get_list_state(ListStateDescriptor("list", int))
        self.map = ctx.get_map_state(MapStateDescriptor("map", int, int))
        self.value = ctx.get_state(ValueStateDescriptor("value", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.list.add(value.n)
        self.map.put(value.n, value.n)
        self.map.remove(value.n - 3)
        self.value.update(value.n)
        self.value.clear()
        yield value.k, sum(self.list.get()) * 1000 + sum(self.map.values())


@both_backends
def test_what_is_kept_of_a_key_does_not_grow_with_the_epochs(backend: Any, tmp_path: Path) -> None:
    desk = Desk(Lists(), tmp_path, backend)
    for n in range(1, 40):
        report = desk.run(("a", n), worker=0)
        assert desk.found == [("a", sum(range(n + 1)) * 1000 + sum(range(max(n - 2, 1), n + 1)))]
    # The chunks of the list, three entries of the map, and what stores hold of themselves.
    assert backend.name == "rocksdb" or report.stores["count"].entries < 20
    [(task, _)] = desk.workers[0].workers[0]._tasks.values()
    state = task._kept[0].state
    assert state is not None
    cached = {table.name: table.cached() for table in state.tables}
    assert cached == {"list": 1, "map": 4, "value": 0}


class Visits(KeyedProcessFunction):
    """A value, a map and a list that expire after a second."""

    def open(self, ctx: Any) -> None:
        ttl = StateTtlConfig("1 s")
        self.value = ctx.get_state(ValueStateDescriptor("value", int, ttl=ttl))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, int, ttl=ttl))
        self.list = ctx.get_list_state(ListStateDescriptor("list", int, ttl=ttl))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n:
            self.value.update(value.n)
            self.map.put("m", value.n)
            self.list.add(value.n)
        found = (self.value.value() or 0) + (self.map.get("m") or 0) + sum(self.list.get())
        yield value.k, found


@both_backends
def test_what_has_expired_is_gone_whether_the_sweep_or_the_cache_is_asked(
    backend: Any, tmp_path: Path
) -> None:
    desk = Desk(Visits(), tmp_path, backend)
    desk.run(("a", 1), ("b", 1))
    desk.tasks.clock.advance(600)
    desk.run(("b", 10))
    assert desk.found == [("b", 31)]
    desk.tasks.clock.advance(600)
    desk.run(("a", 0), ("b", 0))
    assert desk.found == [("a", 0), ("b", 30)]
    desk.tasks.clock.advance(600)
    report = desk.run(("c", 1))
    assert report.stores["count"].expired_removed, "the sweep has removed entries of b"
    desk.run(("a", 0), ("b", 0))
    assert desk.found == [("a", 0), ("b", 0)]


# What a worker keeps


class Room:
    """A worker whose memory and clock the test sets."""

    def __init__(self, directory: Path) -> None:
        self.memory = 0
        self.seconds = 0.0
        self.tasks = WorkerTasks(lambda: self.memory, lambda: self.seconds)
        self.directory = directory
        self.desk = Desk(Counted(), directory)

    def key(self, subtask: int = 0, job: str = "job", attempt: str = "1") -> TaskKey:
        run = JobRun(str(self.directory), job, ProcessIdentity.current("run"))
        return TaskKey(run, attempt, "stage", subtask)

    def run(self, key: TaskKey, most_memory: int = 10) -> None:
        """A task of the first epoch of a job."""
        if self.tasks.take(key, None) is not None:
            return
        task = StageTask(self.desk.tasks.stage, key.subtask, ManualClock())
        epoch = self.desk.tasks.epoch_plan(job_attempt=f"{key.job.job_id}-{key.job_attempt}")
        list(task.run(epoch, TaskIdentity(key.subtask, 0, 1), self.desk.tasks.batches((("a", 1),))))
        self.tasks.keep(key, task, most_memory)
        del task
        self.tasks.trim(key, most_memory)
        self.tasks.rest()

    def registered(self, job: str = "job") -> list[str]:
        workers = self.key(job=job).job.directory / "workers"
        return os.listdir(workers) if workers.exists() else []


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_the_least_recently_used_tasks_go_when_memory_is_short(room: Room) -> None:
    for subtask in (0, 1, 2):
        room.run(room.key(subtask))
    task = room.tasks.take(room.key(0), None)
    assert task is not None
    room.tasks._memory = lambda: 9 + len(room.tasks)
    room.tasks.keep(room.key(0), task, 10)
    room.tasks.trim(room.key(0), 10)
    assert [key.subtask for key in room.tasks._tasks] == [0]
    assert LOG == ["open"] * 3 + ["close"] * 2


def test_a_worker_that_may_keep_nothing_closes_every_function_at_once(room: Room) -> None:
    room.memory = 1
    room.run(room.key(), most_memory=0)
    assert len(room.tasks) == 0
    assert LOG == ["open", "close"]


def test_tasks_of_another_job_go_when_they_are_not_used_for_long(room: Room) -> None:
    room.run(room.key(job="other"))
    room.seconds = UNUSED_SECONDS
    room.run(room.key())
    assert len(room.tasks) == 2
    room.seconds += 1
    room.run(room.key(1))
    assert {key.job.job_id for key in room.tasks._tasks} == {"job"}


def test_an_idle_worker_closes_its_functions_and_a_busy_one_does_not(room: Room) -> None:
    room.run(room.key())
    assert room.registered() == [str(os.getpid())]
    room.seconds = IDLE_SECONDS + 1
    room.tasks.is_busy = True
    room.tasks.close_ended()
    assert LOG == ["open"]
    room.tasks.is_busy = False
    assert room.tasks.has_ended_jobs
    room.tasks.close_ended()
    assert LOG == ["open", "close"]
    assert len(room.tasks) == len(room.registered()) == 0


def test_functions_of_a_job_that_has_ended_are_closed_and_others_stay(room: Room) -> None:
    room.run(room.key())
    room.run(room.key(job="other"))
    close_functions(str(room.directory), "job", "run", patience=0)
    assert room.tasks.has_ended_jobs
    room.tasks.close_ended()
    assert LOG == ["open", "open", "close"]
    assert room.registered() == []
    assert room.registered("other") == [str(os.getpid())]


def test_the_end_of_a_job_waits_for_functions_to_be_closed_in_their_own_thread(
    room: Room,
) -> None:
    before = signal.getsignal(signal.SIGURG)
    closed_in: list[Any] = []
    room.run(room.key())
    [(task, _)] = room.tasks._tasks.values()
    task._kept[0].operator._function.close = lambda: closed_in.append(threading.current_thread())
    IdleWatch(room.tasks, lambda: True)
    try:
        ended = threading.Thread(
            target=close_functions, args=(str(room.directory), "job", "run", 60.0)
        )
        ended.start()
        while ended.is_alive():
            ended.join(0.05)
    finally:
        signal.signal(signal.SIGURG, before)
    assert closed_in == [threading.main_thread()]
    assert room.registered() == []


def test_a_restart_leaves_the_files_of_workers_with_functions_to_close(room: Room) -> None:
    room.run(room.key())
    tidy_job(str(room.directory), "job", run="run", job_attempt="2")
    assert room.registered() == [str(os.getpid())]


def test_the_end_of_a_job_does_not_wait_for_a_dead_worker(room: Room) -> None:
    room.run(room.key())
    workers = room.key().job.directory / "workers"
    (workers / str(os.getpid())).rename(workers / "999999999")
    close_functions(str(room.directory), "job", "run", patience=60)


def test_a_function_that_cannot_be_closed_is_told_of_on_standard_error(
    room: Room, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Counted) -> None:
        raise OSError("cannot disconnect")

    monkeypatch.setattr(Counted, "close", fail)
    room.run(room.key())
    room.tasks.close_all()
    assert "in close(): OSError: cannot disconnect" in capsys.readouterr().err
    assert len(room.tasks) == 0


def test_functions_that_take_long_to_close_are_closed_once_each_and_waited_for(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes again while they are being closed."""
    before = signal.getsignal(signal.SIGURG)

    def slowly(self: Counted) -> None:
        LOG.append("closing")
        signal.raise_signal(signal.SIGURG)
        LOG.append("close")

    monkeypatch.setattr(Counted, "close", slowly)
    for subtask in range(3):
        room.run(room.key(subtask))
    LOG.clear()
    IdleWatch(room.tasks, lambda: True)
    try:
        close_functions(str(room.directory), "job", "run", patience=0)
        signal.raise_signal(signal.SIGURG)
    finally:
        signal.signal(signal.SIGURG, before)
    assert LOG == ["closing", "close"] * 3
    assert room.registered() == []


def test_what_a_job_keeps_goes_when_the_worker_is_idle_though_nothing_is_to_be_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.api.functions import Function

    monkeypatch.setattr(Counted, "close", Function.close)
    room.run(room.key())
    assert room.registered() == []
    room.seconds = IDLE_SECONDS + 1
    assert room.tasks.has_ended_jobs
    room.tasks.close_ended()
    assert len(room.tasks) == 0


def test_what_an_ended_job_keeps_goes_at_once_though_nothing_is_to_be_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.api.functions import Function

    monkeypatch.setattr(Counted, "close", Function.close)
    for job in ("job", "other"):
        claim_job(str(room.directory), job, ProcessIdentity.current("run"))
        room.run(room.key(job=job))
    assert not room.tasks.has_ended_jobs
    delete_job(str(room.directory), "job", "run")
    assert room.tasks.has_ended_jobs
    room.tasks.close_ended()
    assert room.tasks.count_of(room.key().job) == 0
    assert room.tasks.count_of(room.key(job="other").job) == len(room.tasks) == 1


def test_a_late_task_does_not_revive_the_directory_of_a_job_that_has_ended(room: Room) -> None:
    room.run(room.key())
    close_functions(str(room.directory), "job", "run", patience=0)
    room.tasks.close_ended()
    room.run(room.key(1))
    assert LOG == ["open", "close"] * 2
    assert room.registered() == []


def test_a_job_that_may_keep_nothing_takes_nothing_from_others(room: Room) -> None:
    room.run(room.key(job="other"))
    room.memory = 5
    room.run(room.key(), most_memory=0)
    assert [key.job.job_id for key in room.tasks._tasks] == ["other"]


def test_a_process_that_runs_one_task_only_closes_its_functions(room: Room) -> None:
    room.tasks._reuses = False
    room.run(room.key())
    assert LOG == ["open", "close"]


# Garbage


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_what_survives_a_task_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected: list[int] = []
    collect: Callable[..., int] = gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))
    garbage = Garbage()
    for _ in range(COLLECT_EVERY + 1):
        garbage.settle()
    assert collected == [2] + [1] * (COLLECT_EVERY - 1) + [2]
    assert gc.get_freeze_count() > 0
    collect()


@pytest.mark.usefixtures("unfrozen")
def test_the_memory_of_a_closed_task_is_free_at_once(room: Room) -> None:
    room.run(room.key())
    [(task, _)] = room.tasks._tasks.values()
    kept = weakref.ref(task._kept[0])
    del task
    room.tasks._garbage.settle()
    room.memory = 1
    room.tasks.trim(room.key(), 0)
    assert kept() is None


def test_the_memory_of_a_process_grows_with_what_it_holds() -> None:
    before = resident_bytes()
    held = bytearray(64 << 20)
    assert resident_bytes() - before > 60 << 20
    del held


def test_a_worker_whose_memory_spark_limits_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_to_keep(1000) == 1000
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1200, -1))
    assert memory_to_keep(1000) == 600
    assert memory_to_keep(500) == 500
