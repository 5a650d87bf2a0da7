"""One driver of a job with staged output, run by hand without Spark or a coordinator."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.completed import load_all
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import CorruptCheckpointError
from holdfast.job.model import EpochResult, JobIdentity
from holdfast.job.statistics import EpochStatistics
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.programs import Program
from tests.support.staged import LocalCalls, Notebook, StagedRun, calls
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.job.threads import TimeLimits


class Driver:
    """One driver of a job with one sink on one subtask, without a coordinator."""

    def __init__(
        self,
        tmp_path: Path,
        sink: Notebook,
        *,
        exactly_once: bool = True,
        files: FileSystemFiles | None = None,
        time_limits: TimeLimits | None = None,
    ) -> None:
        program = Program(parallelism=1)
        program.source(ROWS).sink_to(sink).uid("sink")
        self.plan = program.compile()
        self.tmp_path = tmp_path
        self.files = files or FileSystemFiles(str(tmp_path / "checkpoints"))
        self.fence = take_fence(self.files)
        self.storage = JobStorage(self.files, self.fence)
        self.job_attempts = 0
        publisher = Publisher(self.plan, LocalCalls())
        self.commits = CommitService(
            publisher, self.files, exactly_once=exactly_once, time_limits=time_limits
        )
        with suppress(CorruptCheckpointError):
            self.commits.inherit(list(load_all(self.files)))

    def begin(self, epoch: int = 0) -> None:
        """Begin another job attempt behind `epoch`."""
        self.job_attempts += 1
        self.job_attempt = f"{self.fence.number}-{self.job_attempts}"
        self.run = StagedRun(
            self.plan,
            self.tmp_path / "local",
            FileStaging(self.files),
            job_attempt=self.job_attempt,
        )
        self.run.epoch = epoch
        self.commits.begin(JobIdentity("job", "Job", None, self.job_attempt))

    def epoch(self, *numbers: int) -> None:
        self.run.run([("a", n) for n in numbers], exactly_once=self.commits.exactly_once)
        statistics = EpochStatistics(self.run.epoch, 1, 0)
        self.commits.epoch_completed(EpochResult(statistics, self.run.reports))

    def stored(self, checkpoint_id: int) -> CheckpointMetadata:
        """Complete a checkpoint of all epochs so far, and publish nothing yet."""
        metadata = replace(
            checkpoint(checkpoint_id, fence=self.fence.number),
            operators=[],
            sources=[],
            spark={"offset_metadata": "{}"},
            lineage=self.commits.pending_committables.lineage,
            job_attempt=self.job_attempt,
            epoch=self.run.epoch,
            committables=self.commits.pending_committables.listed(self.run.epoch, checkpoint_id),
            stale_notes=self.commits.pending_committables.stale_notes or UNSET,
        )
        self.storage.complete(metadata)
        self.storage.keep_staged(metadata)
        return metadata

    def publish(self, metadata: CheckpointMetadata) -> None:
        self.commits.publish(metadata, self.commits.pending_committables, self.storage)

    def complete(self, checkpoint_id: int) -> CheckpointMetadata:
        metadata = self.stored(checkpoint_id)
        self.publish(metadata)
        return metadata

    def recover(self, metadata: CheckpointMetadata) -> None:
        """Go back to a checkpoint in another job attempt."""
        self.commits.recover(metadata, self.files)
        self.begin(metadata.epoch)

    @property
    def staged(self) -> list[str]:
        return sorted(self.files.entries(STAGED))


def driver_maker(tmp_path: Path) -> Callable[..., Driver]:
    """Makes drivers of the same job; options are those of `Driver`, and of its sink."""

    def made(**options: Any) -> Driver:
        sink = {name: options.pop(name) for name in ("opens", "fails_in") if name in options}
        return Driver(tmp_path, Notebook(**sink), **options)

    return made


def published() -> list[tuple[int, list[int]]]:
    """Checkpoint and numbers of all that went out, in order."""
    return [(call[3], [n for _, n in call[4]]) for call in calls("commit")]
