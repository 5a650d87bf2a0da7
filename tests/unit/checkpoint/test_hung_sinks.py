"""Sinks, listeners and storage that do not answer: the job fails, ends, and owes nothing twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Configuration, HashMapStateBackend
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.completed import completed_checkpoints, load
from holdfast.checkpoint.service import CheckpointService, RecoveryOrder
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import CheckpointError, SinkError
from holdfast.job.model import EpochResult, JobIdentity
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import AFTERWARDS, TimeLimits
from holdfast.spark.sources.query_log import capture
from holdfast.storage.file_system import FileSystemFiles
from tests.support.programs import Program
from tests.support.staged import (
    LocalCalls,
    Notebook,
    NotebookCommitter,
    StagedRun,
    calls,
    no_frames,
)
from tests.support.staged_drivers import published
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.staged_drivers import Driver

WAIT = 30
pytestmark = pytest.mark.usefixtures("no_calls")
SOON = 0.1
"""Seconds after which a call that hangs is given up here."""


class Gate:
    """Something that calls hang at until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened, self.passed = (threading.Event() for _ in range(3))
        self.waiting = 0

    def pass_through(self, then: Callable[[], None] = lambda: None) -> None:
        self.waiting += 1
        self.reached.set()
        try:
            assert self.opened.wait(WAIT)
            then()
        finally:
            self.waiting -= 1
            self.passed.set()

    def open(self) -> None:
        """Let all pass, and wait until they have."""
        self.opened.set()
        wait_until(lambda: not self.waiting)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The first commit of any sink hangs here."""
    made, commit = Gate(), NotebookCommitter.commit

    def hang(committer: NotebookCommitter, requests: Any) -> None:
        if made.reached.is_set():
            commit(committer, requests)
        else:
            made.pass_through(partial(commit, committer, requests))

    monkeypatch.setattr(NotebookCommitter, "commit", hang)
    yield made
    made.open()


@pytest.fixture
def drive(drive: Callable[..., Driver]) -> Callable[..., Driver]:
    return partial(drive, time_limits=TimeLimits(answer=SOON))


# A sink that does not answer


def test_a_sink_that_hangs_is_named_and_its_output_stays_owed(
    drive: Any, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    said = r"sink 'Sink: Notebook' \(uid 'sink'\) has not published the output of checkpoint 1: no "
    with pytest.raises(SinkError, match=rf"{said}.* set sink\.committer\.timeout higher"):
        driver.complete(1)
    assert driver.commits.owes
    assert "has not published" in caplog.text


def test_what_comes_back_late_pays_no_debt_and_a_recovery_publishes_again(
    drive: Any, gate: Gate
) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    metadata = driver.stored(1)
    with pytest.raises(SinkError, match="has not published"):
        driver.publish(metadata)
    gate.open()
    wait_until(lambda: published() == [(1, [1])])
    assert driver.commits.owes, "nobody knows that it came back"
    driver.recover(metadata)
    assert published() == [(1, [1]), (1, [1])], "under the same id, so that sinks can tell"
    assert not driver.commits.owes


def test_what_comes_back_late_goes_on_with_nothing(drive: Any, gate: Gate) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    first = driver.stored(1)
    with pytest.raises(SinkError, match="has not published"):
        driver.publish(first)
    driver.epoch(2)
    gate.reached.clear()
    with pytest.raises(SinkError, match="checkpoint 1, 2: no answer"):
        driver.publish(driver.stored(2))
    gate.open()
    wait_until(lambda: len(published()) == 2)
    wait_until(lambda: not driver.commits._time_limits._hanging)
    assert published() == [(1, [1]), (1, [1])], "checkpoint 2 is the recovery's"


def test_a_sink_that_hangs_does_not_hold_up_the_others(tmp_path: Path, gate: Gate) -> None:
    job = Job(tmp_path, Notebook("first"), Notebook("second"))
    job.epoch()
    job.checkpoint()
    wait_until(lambda: bool(job.failures))
    assert [call[1] for call in calls("commit")] == ["second"]
    assert "(uid 'first')" in str(job.failures[0])
    job.close()


def test_without_exactly_once_a_sink_that_hangs_fails_its_epoch(drive: Any, gate: Gate) -> None:
    driver = drive(exactly_once=False)
    driver.begin()
    with pytest.raises(SinkError, match=r"\(uid 'sink'\) has not published the output of an epoch"):
        driver.epoch(1)


def test_no_job_attempt_begins_while_a_clean_up_of_another_may_come_back(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take what the newer one stages for something that was left behind."""
    gate = Gate()
    monkeypatch.setattr(NotebookCommitter, "clean_up", lambda *given: gate.pass_through())
    driver = drive()
    driver.begin()
    driver.epoch(1)
    metadata = driver.complete(1)
    assert gate.reached.is_set()
    with pytest.raises(SinkError, match="hangs, and could delete"):
        driver.recover(metadata)
    gate.open()
    assert gate.passed.wait(WAIT)
    wait_until(lambda: not driver.commits._time_limits._hanging)
    driver.recover(metadata)


# A job whose checkpoints are completed in the background


class Job:
    """A job with sinks, from its checkpoints' point of view; without Spark."""

    def __init__(
        self,
        tmp_path: Path,
        *sinks: Notebook,
        answer: float = SOON,
        afterwards: float = AFTERWARDS,
    ) -> None:
        program = Program(parallelism=1)
        stream = program.source(ROWS).uid("events")
        for sink in sinks or (Notebook("sink"),):
            stream.sink_to(sink).uid(sink.label)
        self.plan = program.compile()
        self.root = tmp_path
        configured = Configuration()
        configured.set("execution.checkpointing.interval", "1 h")
        storage = FileSystemCheckpointStorage(str(tmp_path / "all"), 0)
        found = checkpoint_settings(configured, storage)
        assert found is not None
        self.settings = replace(found, asynchronous=True)
        self.time_limits = TimeLimits(answer=answer, end=SOON, afterwards=afterwards)
        self.listener = Listener()
        self.failures: list[BaseException] = []
        self.checkpointing = CheckpointService(
            "job",
            HashMapStateBackend(),
            self.settings,
            RecoveryOrder(),
            (self.listener,),
            self.time_limits,
        )
        calls: Any = LocalCalls()
        self.checkpointing.open(self.plan, calls, no_frames, self.failures.append)
        self.files = FileSystemFiles(str(tmp_path / "all" / "job"))
        self.begun = 0
        self.begin()

    def begin(self) -> None:
        self.begun += 1
        name = self.checkpointing.job_attempt(self.begun)
        job = JobIdentity("job", "Job", str(self.root / "local"), name)
        restored = self.checkpointing.restore(job)
        job = restored.job or job
        self.run = StagedRun(
            self.plan, self.root / "local", FileStaging(self.files), job_attempt=job.job_attempt
        )
        self.run.epoch = restored.start.epoch
        self.batch = -1 if restored.metadata is None else restored.metadata.batch_id
        self.checkpointing.begin(
            job, restored, partial(capture, self.root / "query", {"events": (0,)})
        )

    def epoch(self) -> None:
        self.batch += 1
        offsets = self.root / "query" / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(self.batch)).write_text(f"v1\n{{}}\n{self.batch}")
        self._run(self.checkpointing.next_epoch(idle=False), [("a", self.batch)])

    def checkpoint(self) -> None:
        """Begin a checkpoint, which goes on by itself."""
        self._run(self.checkpointing.next_epoch(idle=True, last=True), [])

    def _run(self, order: Any, feed: list[Any]) -> None:
        number = None if order.checkpoint is None else order.checkpoint.id
        self.run.run(feed, checkpoint=number, next_checkpoint=order.next_checkpoint)
        result = EpochResult(EpochStatistics(self.run.epoch, len(feed), 1), self.run.reports)
        self.checkpointing.epoch_completed(order, result, self.batch)

    @property
    def complete(self) -> list[int]:
        return [found for _, found in completed_checkpoints(self.files)]

    @property
    def owes(self) -> bool:
        assert self.checkpointing._commits is not None
        return self.checkpointing._commits.owes

    def close(self) -> None:
        assert self.checkpointing._checkpointer is not None
        self.checkpointing._checkpointer.close()


class Listener:
    """Hears how checkpoints end; hangs at a gate if there is one."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.gate: Gate | None = None
        self.thread: int | None = None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._hear("complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._hear("aborted", checkpoint_id)

    def _hear(self, what: str, checkpoint_id: int) -> None:
        self.heard.append((what, checkpoint_id))
        if self.gate is not None:
            self.gate.pass_through()


def test_a_job_whose_sink_hangs_fails_and_the_recovery_publishes(
    tmp_path: Path, gate: Gate
) -> None:
    job = Job(tmp_path)
    job.epoch()
    job.checkpoint()
    wait_until(lambda: bool(job.failures))
    assert isinstance(job.failures[0], SinkError)
    with pytest.raises(SinkError, match="has not published"):
        job.epoch()
    assert (job.complete, job.owes) == ([1], True)
    job.begin()
    assert published() == [(1, [0])]
    assert not job.owes
    gate.open()
    assert gate.passed.wait(WAIT)
    job.epoch()
    job.checkpoint()
    job.close()
    assert not job.owes


def test_a_job_ends_though_its_sink_hangs_and_another_one_publishes(
    tmp_path: Path, gate: Gate
) -> None:
    job = Job(tmp_path, answer=WAIT)
    job.epoch()
    job.checkpoint()
    assert gate.reached.wait(WAIT)
    job.close()
    assert job.owes
    assert job.complete == [1]
    again = Job(tmp_path)
    assert published() == [(1, [0])]
    gate.open()
    wait_until(lambda: len(published()) == 2)
    assert published() == [(1, [0]), (1, [0])], "under the id that sinks have seen"
    assert again.complete == [1]
    again.close()


def test_a_recovery_waits_for_output_that_is_being_published(tmp_path: Path, gate: Gate) -> None:
    job = Job(tmp_path, answer=WAIT)
    job.epoch()
    job.checkpoint()
    assert gate.reached.wait(WAIT)
    beginning = threading.Thread(target=job.begin)
    beginning.start()
    beginning.join(SOON)
    assert beginning.is_alive()
    gate.open()
    beginning.join(WAIT)
    assert published() == [(1, [0])], "once: nobody has given it up"
    assert (job.failures, job.owes) == ([], False)
    job.close()


def test_a_recovery_fails_while_storage_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.epoch()
    job.checkpoint()
    assert job.checkpointing.await_final_checkpoint()
    gate, create = Gate(), FileSystemFiles.create_exclusive

    def hang(files: FileSystemFiles, name: str, data: bytes) -> bool:
        if name.endswith("_metadata"):
            gate.pass_through()
        return create(files, name, data)

    monkeypatch.setattr(FileSystemFiles, "create_exclusive", hang)
    job.epoch()
    job.checkpoint()
    assert gate.reached.wait(WAIT)
    with pytest.raises(CheckpointError, match="check that checkpoint storage responds"):
        job.begin()
    assert ("aborted", 2) in job.listener.heard
    gate.open()
    job.begin()
    assert job.complete == [1], "it was given up, and came too late"
    assert published() == [(1, [0])]
    job.close()


def test_a_job_ends_though_storage_hangs_and_what_comes_late_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, answer=WAIT, afterwards=SOON)
    gate, check = Gate(), job.checkpointing._fence.__class__.check

    def hang(fence: Any) -> None:
        if load_if_there(job.files, 1):
            gate.pass_through()
        check(fence)

    monkeypatch.setattr(job.checkpointing._fence.__class__, "check", hang)
    job.epoch()
    job.checkpoint()
    assert gate.reached.wait(WAIT)
    job.close()
    assert job.owes, "whether it is published is not known"
    assert "hangs, so the job's checkpoints are kept" in caplog.text
    assert job.checkpointing._commits is not None
    job.checkpointing._commits.close(ended=True)
    gate.open()
    assert job.checkpointing._checkpointer is not None
    assert job.checkpointing._checkpointer._completion._idle.wait(WAIT)
    assert published() == []
    assert job.failures == [], "nobody is told of what fails after the end"


def load_if_there(files: FileSystemFiles, checkpoint_id: int) -> bool:
    return files.exists(f"chk-{checkpoint_id}/_metadata")


def test_a_listener_that_hangs_fails_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.listener.gate = Gate()
    job.epoch()
    job.checkpoint()
    wait_until(lambda: bool(job.failures))
    said = str(job.failures[0])
    assert "the checkpoint listener Listener hangs in notify_checkpoint_complete(1)" in said
    assert published() == [(1, [0])]
    job.listener.gate.open()
    job.close()


def test_a_listener_that_raises_no_exception_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(self: Listener, checkpoint_id: int) -> None:
        raise SystemExit("enough")

    monkeypatch.setattr(Listener, "notify_checkpoint_complete", leave)
    job = Job(tmp_path)
    job.epoch()
    job.checkpoint()
    wait_until(lambda: bool(job.failures))
    assert "a checkpoint listener raised in notify_checkpoint_complete(1)" in str(job.failures[0])
    assert "SystemExit: enough" in str(job.failures[0])
    job.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until another thread has made the condition true."""
    pause = threading.Event()
    for _ in range(WAIT * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")


def test_metadata_of_a_checkpoint_whose_sink_hangs_lists_what_is_owed(
    tmp_path: Path, gate: Gate
) -> None:
    job = Job(tmp_path)
    job.epoch()
    job.checkpoint()
    wait_until(lambda: bool(job.failures))
    assert [one.checkpoint_id for one in load(job.files, 1).committables] == [1]
    job.close()
