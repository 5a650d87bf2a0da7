"""Drivers that die anywhere, and others that take over: output goes out exactly once."""

from __future__ import annotations

import itertools
import pickle
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from holdfast import _faults as faults
from holdfast.api.sinks import OPENED, Committer, Sink, SinkWriter
from holdfast.api.two_phase_commit import TwoPhaseCommitSinkFunction
from holdfast.checkpoint.files import job_files as job_storage
from holdfast.checkpoint.files.completed import store_metadata
from holdfast.checkpoint.files.fence import Fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.service import CheckpointService, RecoveryOrder
from holdfast.config.backends import HashMapStateBackend
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.configuration import Configuration
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import CheckpointStorageError, FencedError, HoldfastError
from holdfast.job.model import EpochResult, JobIdentity
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import CallEndedError, TimeLimits
from holdfast.spark.sources.query_log import capture
from holdfast.storage.file_system import FileSystemFiles
from tests.support.programs import Program
from tests.support.properties import searched
from tests.support.staged import LocalCalls, StagedRun, no_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.api.sinks import CommitRequest, WriterContext

PARALLELISM = 2


class Mortal(TimeLimits):
    """The time limits of a driver that may die in a call, and not only fail."""

    def call(self, what: str, work: Callable[[Callable[[], bool]], Any]) -> Any:
        try:
            return super().call(what, work)
        except CallEndedError as error:
            if isinstance(error.__cause__, Died):
                raise error.__cause__ from None
            raise


class Died(BaseException):
    """The driver's process is gone."""


class World:
    """What lies outside of the job, and outlives its drivers."""

    def begin(self) -> None:
        """Begin anew."""
        self.rows: list[int] = []
        """What the fenced sink has taken."""
        self.fences: dict[tuple[str, str, int], int] = {}
        """The newest checkpoint seen, by lineage, sink and subtask."""
        self.transactions: dict[str, str] = {}
        self.contents: dict[str, list[int]] = {}
        self.refuses: int | None = None
        """Subtask whose output the fenced sink refuses."""

    def committed(self) -> list[int]:
        """What transactions have brought out."""
        found = [name for name, state in self.transactions.items() if state == "committed"]
        return [n for name in found for n in self.contents[name]]

    def published(self) -> tuple[list[int], list[int]]:
        """All that is out."""
        return list(self.rows), self.committed()


WORLD = World()


class FencedSink(Sink):
    """Takes the rows of a subtask's checkpoint at once, with its id, and no older ones."""

    takes_rows = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _StagingWriter(context)

    def create_committer(self, runtime: Any) -> Committer:
        return _FencedCommitter()


class _StagingWriter(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        self.context = context
        self.batches: list[Any] = []

    def write_rows(self, rows: Any) -> None:
        self.batches.append(rows)

    def prepare_commit(self) -> Sequence[Any]:
        return (self.context.stage(self.batches),)


class _FencedCommitter(Committer):
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        first = requests[0]
        if first.subtask == WORLD.refuses:
            raise OSError("the table is locked")
        where = (first.lineage, first.uid, first.subtask)
        if first.checkpoint_id <= WORLD.fences.get(where, 0):
            return
        taken = [
            n
            for request in requests
            for batch in request.rows()
            for n in batch.column("n").to_pylist()
        ]
        WORLD.rows += taken
        WORLD.fences[where] = first.checkpoint_id


class Transactions(TwoPhaseCommitSinkFunction):
    """Transactions that refuse what must never be asked of them."""

    def begin_transaction(self) -> str:
        name = f"t{len(WORLD.transactions)}"
        WORLD.transactions[name], WORLD.contents[name] = "open", []
        return name

    def invoke(self, transaction: Any, value: Any, context: Any) -> None:
        WORLD.contents[transaction].append(value.n)

    def pre_commit(self, transaction: Any) -> None:
        WORLD.transactions[transaction] = "prepared"

    def commit(self, transaction: Any) -> None:
        assert WORLD.transactions[transaction] in ("prepared", "committed"), "it is lost"
        WORLD.transactions[transaction] = "committed"

    def abort(self, transaction: Any) -> None:
        if WORLD.transactions[transaction] == "committed":
            raise Violation(f"{transaction} was committed, and is aborted")
        WORLD.transactions[transaction] = "aborted"


class Violation(BaseException):
    """What no committer may be asked for."""


def program() -> Program:
    made = Program(parallelism=PARALLELISM)
    stream = made.source("n bigint").uid("numbers").rebalance()
    stream.sink_to(FencedSink()).uid("fenced")
    stream.add_sink(Transactions()).uid("transactions")
    return made


def batch(number: int) -> list[tuple[int]]:
    """Rows of a micro-batch, the same however often it is read."""
    return [(number * 10 + i,) for i in range(1 + number % 3)]


class Driver:
    """One driver of the job; all it knows is gone when it dies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = program().compile()
        configured = Configuration()
        configured.set("execution.checkpointing.interval", "1 h")
        configured.set("execution.checkpointing.tolerable-failed-checkpoints", "1000")
        found = checkpoint_settings(configured, FileSystemCheckpointStorage(str(root), 0))
        assert found is not None
        self.backend = HashMapStateBackend()
        self.checkpointing = CheckpointService(
            "job",
            self.backend,
            replace(found, asynchronous=False),
            RecoveryOrder(),
            time_limits=Mortal(),
        )
        self.failures: list[BaseException] = []
        calls: Any = LocalCalls()
        self.checkpointing.open(self.plan, calls, no_frames, self.failures.append)
        self.begun = 0
        self.begin()

    def begin(self) -> None:
        """Begin a job attempt, from the newest checkpoint."""
        self.begun += 1
        self.failures.clear()
        name = self.checkpointing.job_attempt(self.begun)
        job = JobIdentity("job", "Job", str(self.root / "local"), name)
        restored = self.checkpointing.restore(job)
        job = restored.job or job
        self.run = StagedRun(
            self.plan,
            self.root / "local",
            pickle.loads(pickle.dumps(self.checkpointing.delivery.staging)),
            job_attempt=job.job_attempt,
        )
        self.run.epoch = restored.start.epoch
        self.batch = -1 if restored.metadata is None else restored.metadata.batch_id
        self.checkpointing.begin(
            job, restored, partial(capture, self.root / "query", {"numbers": (0,)})
        )

    def epoch(self) -> None:
        self.batch += 1
        offsets = self.root / "query" / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(self.batch)).write_text(f"v1\n{{}}\n{self.batch}")
        self._run(self.checkpointing.next_epoch(idle=False), batch(self.batch))

    def checkpoint(self) -> None:
        """An epoch for a checkpoint alone, if there is anything new."""
        if self.batch >= 0:
            order = self.checkpointing.next_epoch(idle=True, last=True)
            if order is not None:
                self._run(order, [])

    def _run(self, order: Any, feed: list[Any]) -> None:
        number = None if order.checkpoint is None else order.checkpoint.id
        self.run.run(feed, checkpoint=number, next_checkpoint=order.next_checkpoint)
        statistics = EpochStatistics(self.run.epoch, len(feed), 1)
        result = EpochResult(statistics, self.run.reports)
        self.checkpointing.epoch_completed(order, result, self.batch)


POINTS = st.sampled_from(["before-metadata", "after-metadata", "before-publish", "after-publish"])


class Publishing(RuleBasedStateMachine):
    """One job, its drivers one after the other, and its output."""

    @initialize()
    def start(self) -> None:
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        WORLD.begin()
        self.driver = Driver(self.root)

    def survive(self, step: Callable[[], object], patches: ExitStack | None = None) -> None:
        """Take a step; a driver that fails restarts, one that dies is replaced."""
        try:
            with patches or ExitStack():
                step()
            if self.driver.failures:
                raise self.driver.failures[0]
        except (Died, FencedError):
            self.driver = Driver(self.root)
        except HoldfastError:
            self.survive(self.driver.begin)

    def replace(self) -> None:
        """Start another driver, which may die before it has become one."""
        self.driver = Driver(self.root)

    @rule(checkpoints=st.booleans())
    def epoch(self, checkpoints: bool) -> None:
        self.survive(self.driver.epoch)
        if checkpoints:
            self.survive(self.driver.checkpoint)

    @rule(point=POINTS, skipped=st.integers(0, 3))
    def die_in_a_checkpoint(self, point: str, skipped: int) -> None:
        self.survive(self.driver.epoch)
        self.survive(self.driver.checkpoint, failing(point, skipped, Died()))

    @rule(first=POINTS, second=POINTS, skipped=st.integers(0, 3))
    def die_in_a_checkpoint_and_in_the_recovery(
        self, first: str, second: str, skipped: int
    ) -> None:
        self.survive(self.driver.epoch)

        def die_again() -> None:
            with suppress(Died), failing(first, skipped, Died()):
                self.driver.checkpoint()
            with failing(second, skipped, Died()):
                self.replace()

        self.survive(die_again)

    @rule(point=st.sampled_from(["before-metadata", "after-metadata"]), deleted=st.booleans())
    def fail_a_checkpoint(self, point: str, deleted: bool) -> None:
        """It fails; if its metadata was written, that may stay where it is."""
        self.survive(self.driver.epoch)
        patches = failing(point, 0, OSError("storage is away"))
        if not deleted:
            refusal = CheckpointStorageError("storage is away")
            patches.enter_context(mock.patch.object(JobStorage, "delete", side_effect=refusal))
        self.survive(self.driver.checkpoint, patches)

    @rule(subtask=st.integers(0, PARALLELISM - 1), again=st.booleans())
    def refuse_output(self, subtask: int, again: bool) -> None:
        """The sink refuses, and the job restarts; twice, perhaps."""
        self.survive(self.driver.epoch)

        def refused() -> None:
            try:
                self.driver.checkpoint()
            finally:
                if again:
                    self.driver.begin()

        self.survive(refused, patched(WORLD, "refuses", subtask))

    @rule(every=st.integers(1, 3), checkpoints=st.integers(1, 3), dies=st.booleans())
    def keep_notes(self, every: int, checkpoints: int, dies: bool) -> None:
        """Storage does not delete notes of open transactions, or not all of them."""
        with keeping_notes(every):
            for _ in range(checkpoints):
                self.survive(self.driver.epoch)
                self.survive(self.driver.checkpoint)
            if dies:
                self.survive(self.replace)
                self.survive(self.driver.epoch)
                self.survive(self.driver.checkpoint)

    @rule()
    def restart(self) -> None:
        self.survive(self.driver.epoch)
        self.survive(self.driver.begin)

    @rule(stored=st.booleans(), goes_on=st.booleans())
    def take_over(self, stored: bool, goes_on: bool) -> None:
        """Another driver starts while this one lives on, perhaps in the midst of a checkpoint."""
        self.survive(self.driver.epoch)
        old = self.driver
        if stored:
            self.survive(lambda: self.take_over_at("after-metadata"))
        if self.driver is old:
            self.replace()
        if goes_on:
            self.survive(self.driver.epoch)
        published = WORLD.published()
        for step in (old.epoch, old.checkpoint, old.begin):
            with suppress(HoldfastError):
                step()
        assert WORLD.published() == published, "a driver that lost its fence has published"

    @rule()
    def complete_too_late(self) -> None:
        """A driver looks at its fence, is replaced, and then completes a checkpoint."""
        self.survive(self.driver.epoch)
        old, real = self.driver, store_metadata

        def late(files: Any, metadata: Any, fence: Any) -> None:
            self.replace()
            with mock.patch.object(Fence, "check", return_value=None):
                real(files, metadata, fence)

        with patched(job_storage, "store_metadata", late), suppress(HoldfastError):
            old.checkpoint()
        published = WORLD.published()
        with suppress(HoldfastError):
            old.begin()
        assert WORLD.published() == published, "a driver that lost its fence has published"

    def take_over_at(self, point: str) -> None:
        """Let the driver take a checkpoint, and replace it at a point of that."""
        old, before = self.driver, [True]

        def reach(reached: str, **where: Any) -> None:
            if reached == point and before.pop():
                before.append(False)
                self.replace()

        with patched(faults, "watcher", reach), suppress(FencedError):
            old.checkpoint()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        with self.directory:
            self.survive(self.driver.epoch)
            self.survive(self.driver.checkpoint)
            while not self.driver.checkpointing.await_final_checkpoint():
                # A driver that was replaced has taken its id.
                self.survive(self.driver.checkpoint)
            numbers = range(self.driver.batch + 1)
            expected = sorted(n for number in numbers for (n,) in batch(number))
            assert sorted(WORLD.rows) == expected
            assert sorted(WORLD.committed()) == expected


def patched(target: Any, name: str, value: Any) -> ExitStack:
    """A context in which something is something else."""
    patches = ExitStack()
    patches.enter_context(mock.patch.object(target, name, value))
    return patches


def failing(point: str, skipped: int, error: BaseException) -> ExitStack:
    """A context in which a point raises, once it was passed `skipped` times."""
    left = [skipped]

    def reach(reached: str, **where: Any) -> None:
        if reached == point:
            left[0] -= 1
            if left[0] == -1:
                raise error

    return patched(faults, "watcher", reach)


def keeping_notes(every: int) -> ExitStack:
    """A context in which every so manieth note is not deleted."""
    real, asked = FileSystemFiles.delete, itertools.count(1)

    def delete(files: FileSystemFiles, name: str) -> None:
        if OPENED in name and next(asked) % every == 0:
            raise CheckpointStorageError(f"{name}: access denied")
        real(files, name)

    return patched(FileSystemFiles, "delete", delete)


@searched(12, 120)
def test_whatever_happens_to_a_job_its_output_is_published_once(examples: int) -> None:
    limits = settings(max_examples=examples, stateful_step_count=7)
    run_state_machine_as_test(Publishing, settings=limits)


@pytest.fixture
def job() -> Publishing:
    machine = Publishing()
    machine.start()
    return machine


def test_a_checkpoint_that_turned_up_late_is_not_written_over_once_it_was_gone_back_to(
    job: Publishing,
) -> None:
    job.epoch(checkpoints=True)
    job.complete_too_late()
    job.restart()
    job.epoch(checkpoints=True)
    job.replace()
    job.teardown()


def test_drivers_that_complete_too_late_one_after_another_publish_nothing_twice(
    job: Publishing,
) -> None:
    job.complete_too_late()
    job.epoch(checkpoints=True)
    for _ in range(3):
        job.complete_too_late()
    job.teardown()


def test_output_of_a_failed_checkpoint_that_may_be_found_complete_keeps_its_id(
    job: Publishing,
) -> None:
    job.fail_a_checkpoint("after-metadata", deleted=False)
    job.complete_too_late()
    job.replace()
    job.teardown()


def test_a_note_that_outlives_its_checkpoint_aborts_nothing_under_a_later_driver(
    job: Publishing,
) -> None:
    job.keep_notes(1, 2, dies=True)
    job.replace()
    job.epoch(checkpoints=True)
    job.teardown()
