"""Everything the runtime must know of checkpoints, checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.config import checkpoint_options as options
from holdfast.config.checkpoint_options import CheckpointingMode, ExternalizedCheckpointRetention
from holdfast.config.storage import (
    CheckpointStorage,
    JobManagerCheckpointStorage,
    checkpoint_storage,
)
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration

_YEAR_MS: Final = 365 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """How a job takes checkpoints; its parts agree with each other."""

    interval_ms: int | None
    """Time from one checkpoint to the next, never shorter than the pause; None if none are
    taken but with savepoints."""
    mode: CheckpointingMode
    timeout_ms: int
    """Time after which a checkpoint that is not complete is given up."""
    min_pause_ms: int
    """Least time from a completion to the next start."""
    max_concurrent: int
    """Most checkpoints under way at a time; 1 if they are unaligned."""
    tolerable_failures: int
    """Failures one after another that the job survives."""
    retention: ExternalizedCheckpointRetention
    unaligned: bool
    """Whether input that is not processed yet may go into a checkpoint."""
    aligned_timeout_ms: int
    """How long an unaligned checkpoint waits for the epoch to end."""
    num_retained: int
    """Completed checkpoints that are kept."""
    incremental: bool
    """Whether a checkpoint stores only what changed, where the backend can."""
    asynchronous: bool
    """Whether epochs go on during the upload."""
    local_backup: bool
    """Whether workers keep a copy of the newest checkpoint."""
    after_tasks_finish: bool
    """Whether checkpoints go on when some sources have ended."""
    create_subdir: bool
    """Whether the job's id is part of the directory."""
    accept_duplicates: bool
    """Whether a recovery may go back beyond published output."""
    storage: CheckpointStorage
    transfer_threads: int = options.TRANSFER_THREADS.default
    """Files, or output of subtasks, that an executor moves at a time."""

    def cut_after(self, now: int, due: int | None) -> int | None:
        """After how long an epoch has held a checkpoint up for long enough; None if never.

        Args:
            now: When the epoch begins, in milliseconds on a clock that never goes back.
            due: When a checkpoint is due, on the same; None if one is under way.
        """
        if not self.unaligned or self.interval_ms is None:
            return None
        # Where one is under way, the next is due an interval later at the earliest.
        due = now + self.interval_ms if due is None else due
        return due - now + self.aligned_timeout_ms


def checkpoint_settings(
    configuration: Configuration, storage: CheckpointStorage | None = None
) -> CheckpointSettings | None:
    """How the job takes checkpoints, or None if it takes none.

    Args:
        configuration: The settings of the job.
        storage: Where checkpoints go; what the configuration says if not given.

    Raises:
        ConfigurationError: Two settings contradict each other.
    """
    given = configuration.get
    interval_ms = given(options.CHECKPOINT_INTERVAL)
    if interval_ms is None:
        return None
    storage = checkpoint_storage(configuration) if storage is None else storage
    _check_backlog(given(options.CHECKPOINT_INTERVAL_DURING_BACKLOG), interval_ms)
    if given(options.UNALIGNED):
        _check_unaligned(
            given(options.CHECKPOINTING_MODE), given(options.MAX_CONCURRENT_CHECKPOINTS)
        )
    # The pause would hold up every shorter interval anyhow.
    interval_ms = max(interval_ms, min(given(options.MIN_PAUSE), _YEAR_MS))
    return _settings(configuration, interval_ms, storage)


def savepoint_settings(configuration: Configuration) -> CheckpointSettings:
    """How a job that takes no checkpoints takes savepoints."""
    return _settings(configuration, None, JobManagerCheckpointStorage())


def _settings(
    configuration: Configuration, interval_ms: int | None, storage: CheckpointStorage
) -> CheckpointSettings:
    given = configuration.get
    return CheckpointSettings(
        interval_ms=interval_ms,
        mode=given(options.CHECKPOINTING_MODE),
        timeout_ms=given(options.CHECKPOINT_TIMEOUT),
        min_pause_ms=min(given(options.MIN_PAUSE), _YEAR_MS),
        max_concurrent=given(options.MAX_CONCURRENT_CHECKPOINTS),
        tolerable_failures=given(options.TOLERABLE_FAILURES),
        retention=given(options.CHECKPOINT_RETENTION),
        unaligned=given(options.UNALIGNED),
        aligned_timeout_ms=given(options.ALIGNED_TIMEOUT),
        num_retained=given(options.NUM_RETAINED),
        incremental=given(options.INCREMENTAL),
        asynchronous=given(options.ASYNCHRONOUS),
        local_backup=given(options.LOCAL_BACKUP),
        after_tasks_finish=given(options.AFTER_TASKS_FINISH),
        create_subdir=given(options.CREATE_SUBDIR),
        accept_duplicates=given(options.ACCEPT_DUPLICATES),
        storage=storage,
        transfer_threads=given(options.TRANSFER_THREADS),
    )


def _check_backlog(during_backlog_ms: int | None, interval_ms: int) -> None:
    if during_backlog_ms and during_backlog_ms < interval_ms:
        raise ConfigurationError(
            f"{options.CHECKPOINT_INTERVAL_DURING_BACKLOG.key} is {during_backlog_ms} ms, shorter "
            f"than {options.CHECKPOINT_INTERVAL.key}, {interval_ms} ms; give 0 or at least the "
            "interval"
        )


def _check_unaligned(mode: CheckpointingMode, max_concurrent: int) -> None:
    if mode is not CheckpointingMode.EXACTLY_ONCE:
        raise ConfigurationError(
            f"{options.UNALIGNED.key} needs {options.CHECKPOINTING_MODE.key} EXACTLY_ONCE, and it "
            f"is {mode.name}; change one of them"
        )
    if max_concurrent != 1:
        raise ConfigurationError(
            f"{options.UNALIGNED.key} allows one checkpoint at a time, and "
            f"{options.MAX_CONCURRENT_CHECKPOINTS.key} is {max_concurrent}; set it to 1"
        )
