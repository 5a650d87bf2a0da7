"""Taking checkpoints: real files and real local snapshots, no cluster."""

from __future__ import annotations

import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Configuration, EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.checkpointer import MOST_HANGING, Checkpointer
from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import PUBLISHED_KNOWN, CommitService
from holdfast.checkpoint.files.completed import (
    checkpoint_ids,
    completed_checkpoints,
    load,
    verify_handles,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import FENCE_EVERY_MS
from holdfast.checkpoint.listeners import CheckpointNotifier
from holdfast.checkpoint.pending import CheckpointBase
from holdfast.checkpoint.savepoint.requests import Savepoints
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import CheckpointError, CheckpointStorageError, FencedError
from holdfast.job.model import EpochResult, JobIdentity
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import TimeLimits
from holdfast.runtime.plan import ChannelRows
from holdfast.spark.serialization import dump_function
from holdfast.spark.sources.query_log import capture
from holdfast.spark.sources.source import Source
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import FileHandle
from holdfast.testing.clock import ManualClock
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.errors import HoldfastError
    from holdfast.job.model import EpochOrder

WAIT = 30
INTERVAL = 1_000
TIMEOUT = 5_000
LEFT_OVER = "staged/1-1-left-over"
"""A file with input that an epoch had no time for."""


class Calls:
    """Calls in this process; the uploads of a checkpoint can be held up, or fail."""

    local = True
    threads = 1

    def __init__(self) -> None:
        self.homes: dict[int, str] = {}
        self.cancelled: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.fails: dict[str, BaseException] = {}
        self.held_up: list[str] = []

    def pickle(self, function: object, what: str) -> bytes:
        return dump_function(function, what)

    def cancel(self, group: str) -> None:
        self.cancelled.append(_of_any_job(group))

    def record_location(self, tasks: int, subtask: int, executor: str) -> None:
        self.homes[subtask] = executor

    def map(
        self, function: Callable[[Any], Any], items: Sequence[tuple[int, int, Any]], group: str
    ) -> Iterator[Any]:
        group = _of_any_job(group)
        for number, (_, _, item) in enumerate(items):
            if number and group in self.gates:
                self.held_up.append(group)
                assert self.gates[group].wait(WAIT)
            if number and group in self.fails:
                raise self.fails[group]
            yield function(item)

    def hold(self, checkpoint_id: int) -> threading.Event:
        """Hold a checkpoint up after its first upload, until the event is set."""
        gate = self.gates[f"holdfast-upload-{checkpoint_id}"] = threading.Event()
        return gate

    def fail(self, checkpoint_id: int, error: BaseException) -> None:
        """Let a checkpoint fail after its first upload."""
        self.fails[f"holdfast-upload-{checkpoint_id}"] = error


def _of_any_job(group: str) -> str:
    """The name of a group without the part that names the job."""
    return re.sub(r"-[0-9a-f]{8}-", "-", group)


class Listener:
    """Notes how checkpoints end; raises for one of them."""

    def __init__(self, raises_for: int | None = None) -> None:
        self.heard: list[tuple[str, int]] = []
        self.raises_for = raises_for

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(("complete", checkpoint_id))
        if checkpoint_id == self.raises_for:
            raise LookupError("nobody there")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(("aborted", checkpoint_id))


def unread(_: object) -> Any:
    raise AssertionError("nothing is read here")


class Bench:
    """A checkpointer over a program with two subtasks that count by key."""

    def __init__(self, tmp_path: Path, *, backend: Any = None, **settings: Any) -> None:
        self.query_dir = tmp_path / "query"
        self.capture = partial(capture, self.query_dir, {"events": (0,)})
        self.committed: list[str] = []
        self.program = Program(backend=backend or HashMapStateBackend())
        stream = self.program.source(ROWS).uid("events")
        stream._edges[0].node.function = Source(
            "events", False, unread, None, commit=self.committed.append
        )
        self.program.collect(stream.key_by("k").process(Count(), "k string, n bigint").uid("count"))
        self.tasks = Tasks(self.program, tmp_path / "local")
        self.files = FileSystemFiles(str(tmp_path / "checkpoints"))
        configured = Configuration()
        configured.set("execution.checkpointing.interval", f"{INTERVAL} ms")
        configured.set("execution.checkpointing.timeout", f"{TIMEOUT} ms")
        threshold = settings.pop("inline_below", 0)
        self.known = settings.pop("published_known", PUBLISHED_KNOWN)
        self.limits = {
            name: settings.pop(name)
            for name in ("most_inline", "most_hanging", "sample")
            if name in settings
        }
        storage = FileSystemCheckpointStorage(str(tmp_path / "checkpoints"), threshold)
        self.settings = checkpoint_settings(configured, storage)
        assert self.settings is not None
        self.settings = replace(self.settings, **{"asynchronous": False} | settings)
        self.calls = Calls()
        self.clock = ManualClock(10_000)
        self.listener = Listener()
        self.failures: list[HoldfastError] = []
        self.fence = take_fence(self.files)
        self.batch = -1
        self.epoch_ms = 0
        self.time_limits = TimeLimits()
        self.checkpointer = self.make()
        self.begin()

    def make(self, **options: Any) -> Checkpointer:
        plan = self.program.compile()
        publisher = Publisher(plan, self.calls)
        self.commits = CommitService(
            publisher, self.files, exactly_once=True, published_known=self.known
        )
        return Checkpointer(
            plan,
            self.settings,  # type: ignore[arg-type]
            self.files,
            self.fence,
            self.calls,
            options.get("completed", []),
            options.get("next_id", 1),
            self.failures.append,
            self.commits,
            [self.listener],
            savepoints=Savepoints(self.program.settings.backend, alone=False),
            clock=self.clock,
            time_limits=self.time_limits,
            **self.limits,
        )

    def begin(self, base: Any = None, inherited: frozenset[Any] = frozenset()) -> None:
        job = JobIdentity("job", "Job", None, "1-1")
        self.commits.begin(job)
        self.checkpointer.begin_attempt(CheckpointBase(job, base, inherited, self.capture))

    def order(self, *, due: bool = True) -> EpochOrder:
        if due:
            self.clock.advance(INTERVAL)
        order = self.checkpointer.next_epoch(idle=False)
        assert order is not None
        return order

    def run(self, order: EpochOrder) -> EpochResult:
        """The epoch of an order, on both subtasks."""
        self.batch += 1
        offsets = self.query_dir / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(self.batch)).write_text(f"v1\n{{}}\n{self.batch * 10}")
        number = None if order.checkpoint is None else order.checkpoint.id
        reports = []
        for subtask in range(2):
            reports.append(
                self.tasks.run(
                    ("a", 1),
                    subtask=subtask,
                    checkpoint=number,
                    kept_snapshots=order.kept_snapshots,
                )
            )
            self.tasks.epoch -= 1
        self.tasks.epoch += 1
        return EpochResult(EpochStatistics(self.tasks.epoch, 2, self.epoch_ms), reports)

    def taken(self, order: EpochOrder) -> EpochResult:
        result = self.run(order)
        self.checkpointer.epoch_completed(order, result, self.batch)
        return result

    def epoch(self, *, due: bool = True) -> EpochOrder:
        order = self.order(due=due)
        self.taken(order)
        return order

    def settle(self) -> None:
        """Wait for all that is at work, as at the end of a job."""
        self.checkpointer.close()

    @property
    def complete(self) -> list[int]:
        return sorted(found for _, found in completed_checkpoints(self.files))

    def snapshots(self) -> list[Path]:
        return [path for path in (self.tasks.directory).rglob("store") if path.is_dir()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench; all its threads end with the test."""
    benches: list[Bench] = []

    def made(**settings: Any) -> Bench:
        benches.append(Bench(tmp_path, **settings))
        return benches[-1]

    yield made
    for bench in benches:
        for gate in bench.calls.gates.values():
            gate.set()
        bench.checkpointer.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


# Completion


def test_a_checkpoint_completes_and_holds_all_there_is_to_restore(bench: Bench) -> None:
    order = bench.epoch()
    assert order.checkpoint is not None
    assert (order.checkpoint.id, order.checkpoint.timestamp) == (1, 11_000)
    metadata = load(bench.files, 1)
    assert (metadata.epoch, metadata.batch_id, metadata.job_attempt) == (1, 0, "1-1")
    assert (metadata.fence, metadata.job_id) == (bench.fence.number, "job")
    [operator] = metadata.operators
    assert (operator.uid, operator.parallelism, operator.key) == ("count", 2, "str")
    assert [state["name"] for state in operator.states] == ["count"]
    assert [store.key_groups for store in operator.subtasks] == [(0, 63), (64, 127)]
    assert [store.version for store in operator.subtasks] == ["1-1", "1-2"]
    assert [source.uid for source in metadata.sources] == ["events"]
    assert bench.checkpointer.tracker.coordinator.retained == (1,)
    assert bench.failures == []
    assert set(bench.calls.homes) == {0, 1}


def test_those_who_wait_for_it_are_told(bench: Bench) -> None:
    bench.epoch()
    assert bench.listener.heard == [("complete", 1)]
    assert bench.committed == ["0"]
    later = bench.order(due=False)
    assert (later.checkpoint, later.next_checkpoint) == (None, 2)
    assert (later.completed, later.aborted) == ((1,), ())
    assert bench.order(due=False).completed == ()


def test_local_snapshots_go_when_they_are_uploaded(bench: Bench) -> None:
    bench.epoch()
    assert bench.snapshots() == []


def test_local_snapshots_of_the_newest_checkpoint_stay_as_a_backup(
    make: Callable[..., Bench],
) -> None:
    bench = make(local_backup=True)
    bench.epoch()
    first = dict(bench.checkpointer.tracker.local_snapshots.copies)
    assert set(first) == {("count", 0), ("count", 1)}
    assert all((Path(directory) / "store").is_dir() for directory in first.values())
    bench.epoch()
    newest = dict(bench.checkpointer.tracker.local_snapshots.copies)
    bench.epoch()
    assert not any(Path(directory).exists() for directory in first.values())
    assert not newest.items() & bench.checkpointer.tracker.local_snapshots.copies.items()
    assert all(
        Path(path).exists() for path in bench.checkpointer.tracker.local_snapshots.copies.values()
    )


def test_its_figures_are_kept(bench: Bench) -> None:
    bench.clock.advance(INTERVAL)
    order = bench.checkpointer.next_epoch(idle=False)
    assert order is not None
    bench.clock.advance(70)
    bench.taken(order)
    figures = bench.checkpointer.statistics.snapshot()
    assert (figures.total, figures.completed, figures.failed) == (1, 1, 0)
    newest = figures.latest_completed
    assert newest is not None
    assert (newest.num_subtasks, newest.num_acknowledged_subtasks) == (2, 2)
    assert (newest.epoch, newest.epoch_duration_ms) == (1, 70)
    assert newest.external_path == f"{bench.files.root}/chk-1"
    assert newest.state_size == newest.checkpointed_size > 0
    assert {(store.uid, store.subtask) for store in newest.subtasks} == {("count", 0), ("count", 1)}


def test_the_oldest_is_retired(make: Callable[..., Bench]) -> None:
    bench = make(num_retained=2)
    for _ in range(4):
        bench.epoch()
    assert bench.complete == checkpoint_ids(bench.files) == [3, 4]
    history = bench.checkpointer.statistics.snapshot().history
    assert [one.discarded for one in history] == [True, True, False, False]


def test_checkpoints_that_were_there_before_are_retired_in_their_turn(bench: Bench) -> None:
    bench.epoch()
    before = load(bench.files, 1)
    bench.checkpointer.close()
    bench.checkpointer = bench.make(completed=[before], next_id=5)
    bench.begin(before)
    bench.epoch()
    assert bench.complete == [5]


def test_an_increment_uploads_what_is_new_and_old_files_stay_as_long_as_they_are_used(
    make: Callable[..., Bench],
) -> None:
    bench = make(backend=EmbeddedRocksDBStateBackend(), incremental=True)
    bench.epoch()
    first = load(bench.files, 1)
    bench.epoch()
    second = load(bench.files, 2)
    for old, new in zip(first.operators[0].subtasks, second.operators[0].subtasks, strict=True):
        kept = [name for name, handle in new.files.items() if old.files.get(name) == handle]
        assert any(name.endswith(".sst") for name in kept)
        assert new.uploaded_size < new.full_size
    assert bench.complete == [2]
    shared = {handle.path for s in second.operators[0].subtasks for handle in s.files.values()}  # type: ignore[union-attr]
    assert {f"shared/{name}" for name in bench.files.entries("shared")} <= shared


# When none is due


def test_none_begins_before_the_interval_has_passed(bench: Bench) -> None:
    bench.epoch()
    bench.clock.advance(INTERVAL - 1)
    assert bench.order(due=False).checkpoint is None
    bench.clock.advance(1)
    assert bench.order(due=False).checkpoint is not None


def test_an_epoch_carries_the_checkpoint_that_becomes_due_while_it_runs(bench: Bench) -> None:
    bench.epoch_ms = 300
    bench.epoch()
    bench.clock.advance(INTERVAL - 301)
    assert bench.order(due=False).checkpoint is None
    bench.clock.advance(1)
    assert bench.order(due=False).checkpoint is not None


def test_an_epoch_without_input_runs_only_for_a_checkpoint_of_something_new(bench: Bench) -> None:
    bench.epoch(due=False)
    assert bench.checkpointer.next_epoch(idle=True) is None
    bench.clock.advance(INTERVAL)
    order = bench.checkpointer.next_epoch(idle=True)
    assert order is not None
    assert order.checkpoint is not None
    bench.taken(order)
    bench.clock.advance(INTERVAL)
    assert bench.checkpointer.next_epoch(idle=True) is None


# When somebody sets the wall clock

HOUR = 3_600_000


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_checkpoints_keep_their_interval_whatever_the_wall_clock_does(
    bench: Bench, step: int
) -> None:
    bench.epoch()
    bench.clock.set(bench.clock.now_ms() + step)
    assert bench.order(due=False).checkpoint is None
    bench.clock.advance(INTERVAL - 1)
    assert bench.order(due=False).checkpoint is None
    bench.clock.advance(1)
    assert bench.order(due=False).checkpoint is not None


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_checkpoint_expires_by_the_time_it_took_whatever_the_wall_clock_does(
    make: Callable[..., Bench], step: int
) -> None:
    bench = make(asynchronous=True, tolerable_failures=5)
    bench.calls.hold(1)
    bench.epoch()
    bench.clock.set(bench.clock.now_ms() + step)
    bench.checkpointer.expire()
    assert bench.listener.heard == []
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    assert bench.listener.heard == [("aborted", 1)]


def test_the_minimum_pause_passes_whatever_the_wall_clock_does(make: Callable[..., Bench]) -> None:
    bench = make(min_pause_ms=3 * INTERVAL)
    bench.epoch()
    bench.clock.set(bench.clock.now_ms() + HOUR)
    bench.clock.advance(3 * INTERVAL - 1)
    assert bench.order(due=False).checkpoint is None
    bench.clock.set(0)
    bench.clock.advance(1)
    assert bench.order(due=False).checkpoint is not None


def test_what_people_read_is_the_wall_clock(bench: Bench) -> None:
    bench.clock.set(HOUR)
    order = bench.order()
    assert order.checkpoint is not None
    bench.clock.set(2 * HOUR)
    bench.taken(order)
    assert order.checkpoint.timestamp == HOUR + INTERVAL
    metadata = load(bench.files, 1)
    assert (metadata.triggered_ms, metadata.completed_ms) == (HOUR + INTERVAL, 2 * HOUR)


def test_the_fence_is_looked_at_whatever_the_wall_clock_does(bench: Bench) -> None:
    bench.epoch()
    take_fence(bench.files)
    bench.clock.set(0)
    bench.clock.advance(FENCE_EVERY_MS)
    with pytest.raises(FencedError):
        bench.order(due=False)


def test_tasks_are_told_when_to_stop_by_the_wall_clock_and_how_long_that_may_take(
    make: Callable[..., Bench],
) -> None:
    bench = make(unaligned=True, aligned_timeout_ms=200)
    bench.clock.set(HOUR)
    order = bench.order(due=False)
    assert (order.cut_at, order.cut_within_ms) == (HOUR + INTERVAL + 200, INTERVAL + 200)
    bench.clock.advance(INTERVAL - 100)
    order = bench.order(due=False)
    assert (order.cut_at, order.cut_within_ms) == (HOUR + INTERVAL + 200, 300)


# Failure


def test_a_failed_upload_is_borne_as_often_as_is_tolerated(make: Callable[..., Bench]) -> None:
    bench = make(tolerable_failures=1)
    for failing in (1, 3, 4):
        bench.calls.fail(failing, CheckpointStorageError("bucket is full"))
    bench.epoch()
    assert (bench.complete, bench.failures) == ([], [])
    assert bench.epoch().aborted == (1,)
    assert bench.complete == [2]
    bench.epoch()
    with pytest.raises(CheckpointError, match=r"checkpoint 4 failed: .*bucket is full.* the 1 tol"):
        bench.epoch()
    assert [type(error) for error in bench.failures] == [CheckpointError]
    assert bench.listener.heard == [
        ("aborted", 1),
        ("complete", 2),
        ("aborted", 3),
        ("aborted", 4),
    ]
    assert bench.complete == [2]


def test_after_a_failure_no_epoch_begins_until_the_job_has_restarted(
    make: Callable[..., Bench],
) -> None:
    bench = make(asynchronous=True)
    bench.calls.fail(1, CheckpointStorageError("bucket is full"))
    gate = bench.calls.hold(1)
    bench.epoch()
    gate.set()
    wait_for(lambda: bool(bench.failures))
    with pytest.raises(CheckpointError, match="bucket is full"):
        bench.order()
    bench.checkpointer.end_attempt()
    bench.begin()
    assert bench.order().checkpoint is not None


def test_a_checkpoint_of_a_stopped_job_is_no_cause_for_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.checkpointer.epoch_failed(bench.order(), None)
    figures = bench.checkpointer.statistics.snapshot().latest_failed
    assert figures is not None
    assert figures.failure_message == "the job has been stopped"
    assert caplog.records == []


def test_an_epoch_that_fails_takes_its_checkpoint_with_it_and_counts_for_nothing(
    bench: Bench,
) -> None:
    order = bench.order()
    bench.checkpointer.epoch_failed(order, "/disk/state-1.mdb: no room on the disk")
    assert bench.listener.heard == [("aborted", 1)]
    assert bench.failures == []
    figures = bench.checkpointer.statistics.snapshot().latest_failed
    assert figures is not None
    assert figures.failure_message == (
        "the epoch that carried it failed (/disk/state-1.mdb: no room on the disk)"
    )
    assert bench.epoch().next_checkpoint == 2
    assert bench.complete == [2]


def test_one_that_is_not_complete_in_time_expires(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True, tolerable_failures=5)
    gate = bench.calls.hold(1)
    bench.epoch()
    wait_for(lambda: len(bench.files.entries("shared")) > 0)
    bench.clock.advance(TIMEOUT)
    order = bench.checkpointer.next_epoch(idle=False)
    assert order is not None
    assert order.aborted == (1,)
    assert order.checkpoint is not None
    assert bench.calls.cancelled == ["holdfast-upload-1"]
    gate.set()
    bench.taken(order)
    wait_for(lambda: ("complete", 2) in bench.listener.heard)
    bench.settle()
    assert bench.complete == checkpoint_ids(bench.files) == [2]
    assert {name.partition("-")[0] for name in bench.files.entries("shared")} == {"2"}
    assert ("aborted", 1) in bench.listener.heard


def test_an_epoch_counts_though_its_checkpoint_expires_while_it_runs(
    make: Callable[..., Bench],
) -> None:
    bench = make(tolerable_failures=5)
    kept = bench.files.root + "/" + LEFT_OVER
    bench.files.write_bytes(LEFT_OVER, b"rows")
    order = bench.order()
    bench.epoch_ms = 700
    rows = StagedRows(FileHandle(LEFT_OVER, 4, ""), 1, 4)
    left = ChannelRows("count", 0, 0, 2, 128, rows)
    result = replace(bench.run(order), channel_rows=(left,))
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    assert bench.complete == []
    assert set(bench.calls.homes) == {0, 1}, "where the tasks have run"
    assert bench.checkpointer._epoch_ms == 700
    assert Path(kept).exists()
    # The next one processes what was left over, and is taken for all there is.
    assert bench.epoch().checkpoint is not None
    assert bench.complete == [2]
    assert not Path(kept).exists()


def test_an_epoch_without_a_checkpoint_that_ends_after_its_job_attempt_changes_nothing(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    order = bench.order(due=False)
    assert order.checkpoint is None
    result = bench.run(order)
    bench.checkpointer.end_attempt()
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    assert bench.calls.homes == {}, "the next job attempt may run its tasks elsewhere"


def test_an_epoch_that_ends_after_its_job_attempt_leaves_nothing(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    bench.epoch()
    order = bench.order()
    result = bench.run(order)
    bench.checkpointer.end_attempt()
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    assert bench.complete == checkpoint_ids(bench.files) == [1]
    # The job attempt that follows has not changed anything yet.
    bench.begin()
    bench.clock.advance(INTERVAL)
    assert bench.checkpointer.next_epoch(idle=True) is None


def test_one_that_is_overtaken_is_subsumed(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True, max_concurrent=2)
    gate = bench.calls.hold(1)
    bench.epoch()
    bench.epoch()
    wait_for(lambda: ("complete", 2) in bench.listener.heard)
    assert bench.listener.heard[0] in [("complete", 2), ("aborted", 1)]
    gate.set()
    bench.settle()
    assert bench.complete == checkpoint_ids(bench.files) == [2]
    assert sorted(bench.listener.heard) == [("aborted", 1), ("complete", 2)]
    assert bench.failures == []
    assert bench.committed == ["10"]


def test_what_a_failed_one_left_behind_is_swept_up_by_the_next(make: Callable[..., Bench]) -> None:
    bench = make(backend=EmbeddedRocksDBStateBackend(), incremental=True, tolerable_failures=1)
    bench.calls.fail(1, CheckpointStorageError("bucket is full"))
    bench.epoch()
    assert bench.files.entries("shared") == {}
    # Of an upload that had not noticed yet that its checkpoint was given up.
    bench.files.write_bytes("shared/1-1a7e", b"late")
    bench.epoch()
    assert "1-1a7e" not in bench.files.entries("shared")
    assert bench.files.entries("shared")
    assert checkpoint_ids(bench.files) == [2]


def test_a_listener_that_raises_fails_the_job_and_not_the_checkpoint(bench: Bench) -> None:
    bench.listener.raises_for = 1
    said = r"notify_checkpoint_complete\(1\): LookupError: nobody there"
    with pytest.raises(CheckpointError, match=said):
        bench.epoch()
    assert bench.complete == [1]


def test_metadata_that_cannot_be_written_is_a_failure(bench: Bench) -> None:
    order = bench.order()
    bench.files.create_exclusive("chk-1/_metadata", b"another's")
    with pytest.raises(CheckpointError, match=r"metadata could not be written .*complete already"):
        bench.taken(order)
    assert bench.listener.heard == [("aborted", 1)]


# The end of a job attempt, of the job, and of the right to write


def test_what_a_job_attempt_has_begun_ends_with_it(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    bench.epoch()
    assert bench.checkpointer.end_attempt() == frozenset()
    assert bench.listener.heard == [("aborted", 1)]
    gate.set()
    bench.begin()
    assert bench.order().aborted == (1,)
    bench.settle()
    assert bench.complete == []


def test_one_whose_metadata_is_being_written_is_not_wanted_any_more(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = make(asynchronous=True)
    writing, go_on = threading.Event(), threading.Event()
    create = FileSystemFiles.create_exclusive

    def slowly(files: FileSystemFiles, name: str, data: bytes) -> bool:
        writing.set()
        assert go_on.wait(WAIT)
        return create(files, name, data)

    monkeypatch.setattr(FileSystemFiles, "create_exclusive", slowly)
    bench.epoch()
    assert writing.wait(WAIT)
    with ThreadPoolExecutor(1) as pool:
        unwanted = pool.submit(bench.checkpointer.end_attempt)
        try:
            assert unwanted.result(WAIT) == {1}
        finally:
            go_on.set()
    bench.settle()
    assert checkpoint_ids(bench.files) == []
    assert bench.listener.heard == [("aborted", 1)]


def test_the_end_of_the_job_aborts_what_is_pending_and_deletes_its_files(
    make: Callable[..., Bench],
) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    bench.epoch()
    wait_for(lambda: len(bench.files.entries("shared")) > 0)
    closing = threading.Thread(target=bench.checkpointer.close)
    closing.start()
    wait_for(lambda: bool(bench.listener.heard))
    gate.set()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert checkpoint_ids(bench.files) == []
    assert bench.files.entries("shared") == {}
    assert bench.failures == []


def test_a_driver_that_was_replaced_completes_nothing_and_deletes_nothing(bench: Bench) -> None:
    bench.epoch()
    order = bench.order()
    take_fence(bench.files)
    with pytest.raises(FencedError, match="taken fence 2"):
        bench.taken(order)
    assert [type(error) for error in bench.failures] == [FencedError]
    assert bench.complete == [1]
    bench.settle()
    assert bench.complete == [1]


def test_a_driver_that_was_replaced_notices_before_its_next_epoch(bench: Bench) -> None:
    bench.epoch()
    take_fence(bench.files)
    bench.clock.advance(FENCE_EVERY_MS)
    with pytest.raises(FencedError):
        bench.order(due=False)


def test_a_job_whose_checkpoints_were_deleted_is_fenced(bench: Bench) -> None:
    bench.epoch()
    shutil.rmtree(bench.files.root)
    bench.clock.advance(FENCE_EVERY_MS)
    with pytest.raises(FencedError, match="deleted while it ran"):
        bench.order(due=False)


# Locks and waits


class OwnedLock:
    """A lock that knows who holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner: int | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.owner = None
        self._lock.release()


@pytest.fixture
def watched(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench that notes which calls are made with the checkpointer's lock held."""
    bench = make(tolerable_failures=9, num_retained=1)
    lock: Any = OwnedLock()
    bench.checkpointer.tracker.lock = lock
    bench.held = []  # type: ignore[attr-defined]

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **options: Any) -> Any:
            if lock.owner == threading.get_ident():
                bench.held.append(name)  # type: ignore[attr-defined]
            return real(*given, **options)

        monkeypatch.setattr(owner, name, call)

    for name in ("read", "exists", "entries", "delete", "delete_tree", "create_exclusive"):
        watch(FileSystemFiles, name)
    watch(bench, "capture")
    bench.begin()
    watch(CommitService, "publish")
    watch(CheckpointNotifier, "completed")
    watch(CheckpointNotifier, "aborted")
    return bench


def test_nothing_is_called_with_the_lock_held(watched: Bench) -> None:
    checkpointer = watched.checkpointer
    watched.epoch()
    watched.epoch()
    checkpointer.epoch_failed(watched.order())
    watched.order()
    watched.clock.advance(TIMEOUT)
    checkpointer.expire()
    watched.order()
    checkpointer.end_attempt()
    watched.begin(load(watched.files, 2))
    watched.clock.advance(FENCE_EVERY_MS)
    watched.order()
    checkpointer.close()
    assert [what for what, _ in watched.listener.heard] == ["complete"] * 2 + ["aborted"] * 4
    assert watched.held == []  # type: ignore[attr-defined]


def test_the_end_of_the_job_does_not_wait_for_an_upload_without_end(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(asynchronous=True)
    bench.time_limits.end = 0.1
    gate = bench.calls.hold(1)
    bench.epoch()
    wait_for(lambda: bool(bench.calls.held_up))
    bench.checkpointer.close()
    assert "hangs, so the job's checkpoints are kept" in caplog.text
    assert bench.commits.owes, "nothing may be deleted"
    gate.set()


def test_uploads_that_hang_do_not_pile_up(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True, tolerable_failures=99)
    gates = [bench.calls.hold(number) for number in range(1, MOST_HANGING + 2)]
    for number, _ in enumerate(gates, 1):
        bench.epoch()
        wait_for(lambda number=number: len(bench.calls.held_up) == number)  # type: ignore[misc]
        bench.clock.advance(TIMEOUT)
        bench.checkpointer.expire()
    bench.epoch()
    figures = bench.checkpointer.statistics.snapshot().latest_failed
    assert figures is not None
    said = "uploads of earlier checkpoints have not ended"
    assert said in (figures.failure_message or "")
    for gate in gates:
        gate.set()
    wait_for(lambda: not bench.checkpointer._uploading)
    bench.epoch()
    wait_for(lambda: ("complete", len(gates) + 2) in bench.listener.heard)


def test_the_end_of_an_upload_that_fails_unexpectedly_is_heard(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True)
    bench.calls.fail(1, KeyboardInterrupt("from nowhere"))
    bench.epoch()
    wait_for(lambda: bool(bench.failures))
    assert "KeyboardInterrupt: from nowhere" in str(bench.failures[0])


def test_checkpoints_go_on_whatever_breaks_in_completing_one(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(asynchronous=True)
    tidy = bench.checkpointer._savepoints.tidy

    def tidy_or_break(checkpoint_id: int) -> None:
        if checkpoint_id == 1:
            raise LookupError("nobody thought of this")
        tidy(checkpoint_id)

    monkeypatch.setattr(bench.checkpointer._savepoints, "tidy", tidy_or_break)
    bench.epoch()
    wait_for(lambda: "checkpoint 1 was not completed" in caplog.text)
    bench.epoch()
    wait_for(lambda: ("complete", 2) in bench.listener.heard)


def test_whoever_waits_for_a_checkpoint_that_never_ends_is_told(
    make: Callable[..., Bench],
) -> None:
    """The clock of checkpoints stands still here, so this one does not expire."""
    bench = make(asynchronous=True, timeout_ms=200)
    bench.commits._time_limits.answer = 0.0
    bench.calls.hold(1)
    bench.epoch()
    with pytest.raises(CheckpointError, match="has not ended within 0 s"):
        bench.checkpointer.await_final_checkpoint()


class Claimed:
    """A savepoint that the job was started from, and has claimed."""

    released = False

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize("published", [True, False])
def test_a_claimed_savepoint_goes_when_output_is_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """Another driver that takes over may start from it, if this one has failed."""
    claimed: Any = Claimed()
    bench.checkpointer.tracker.claim(claimed)
    if published:
        bench.epoch()
    else:
        monkeypatch.setattr(bench.commits, "publish", fail_to_publish)
        with pytest.raises(CheckpointError, match="the database is away"):
            bench.epoch()
    assert claimed.released is published
    assert bench.complete == [1]


def fail_to_publish(*given: Any) -> None:
    raise CheckpointError("the database is away")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until another thread has made the condition true."""
    pause = threading.Event()
    for _ in range(WAIT * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")


# Storage that does not delete


def undeletable(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the first deletions of metadata fail."""
    real, left = bench.files.delete, [times]

    def delete(name: str) -> None:
        if name.endswith("_metadata") and left[0]:
            left[0] -= 1
            raise CheckpointStorageError(f"{name}: storage is away")
        real(name)

    monkeypatch.setattr(bench.files, "delete", delete)


def test_a_checkpoint_that_storage_did_not_delete_is_deleted_with_the_next_one(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    bench.epoch()
    undeletable(bench, monkeypatch, 1)
    bench.epoch()
    assert bench.complete == [1, 2]
    bench.epoch()
    assert bench.complete == [3]
    assert bench.checkpointer.tracker.undeleted() == {}


def test_a_checkpoint_that_storage_did_not_delete_and_that_is_needed_again_stays(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one is lost, and the job goes back to one that was to be deleted."""
    bench = make()
    bench.epoch()
    undeletable(bench, monkeypatch, 1)
    bench.epoch()
    metadata = load(bench.files, 1)
    bench.files.delete_tree("chk-2")
    bench.begin(metadata)
    bench.checkpointer._completion.retry_deletions()
    assert bench.complete == [1]
    verify_handles(metadata, bench.files)
    bench.epoch()
    assert bench.complete == [3], "and it goes like any other"


def test_a_checkpoint_that_is_given_up_while_its_epoch_ends_keeps_no_files(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expires after it was found pending, and before its upload begins."""
    bench = make(tolerable_failures=5)
    bench.epoch()
    order = bench.order()
    result = bench.run(order)
    kept = bench.checkpointer._storage.build_upon

    def too_late(*given: Any) -> None:
        bench.checkpointer.tracker.lock.release()
        try:
            bench.clock.advance(TIMEOUT)
            bench.checkpointer.expire()
        finally:
            bench.checkpointer.tracker.lock.acquire()
        kept(*given)

    monkeypatch.setattr(bench.checkpointer._storage, "build_upon", too_late)
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    monkeypatch.undo()
    assert set(bench.checkpointer._storage._shared._files) == {1}


def test_a_checkpoint_that_was_given_up_stays_in_doubt_until_storage_has_deleted_it(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start might go back to it: what it lists must still be there then."""
    bench = make(tolerable_failures=1)
    bench.epoch()
    undeletable(bench, monkeypatch, 2)

    def reach(point: str, **where: Any) -> None:
        if (point, where) == ("after-metadata", {"checkpoint": 2}):
            raise CheckpointError("the driver is confused")

    monkeypatch.setattr("holdfast._faults.watcher", reach)
    bench.epoch()
    assert bench.complete == [1, 2]
    assert bench.checkpointer.tracker.in_doubt
    assert bench.checkpointer.end_attempt() == frozenset({2})
    assert bench.checkpointer.end_attempt() == frozenset()
    assert bench.complete == [1]
