"""The checkpoint settings of a job, checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.config import checkpoint_options as options
from holdfast.config.checkpoint_options import CheckpointingMode, ExternalizedCheckpointRetention
from holdfast.config.options import given_by, options_of
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
    """The checkpoint settings of a job, without contradictions."""

    interval_ms: int | None
    """Time from one checkpoint to the next, at least the pause; None if checkpoints are taken
    only with savepoints."""
    mode: CheckpointingMode = given_by(options.CHECKPOINTING_MODE)
    timeout_ms: int = given_by(options.CHECKPOINT_TIMEOUT)
    """Time after which an incomplete checkpoint is aborted."""
    min_pause_ms: int = given_by(options.MIN_PAUSE)
    """Minimum time from the completion of a checkpoint to the start of the next."""
    max_concurrent: int = given_by(options.MAX_CONCURRENT_CHECKPOINTS)
    """Maximum number of concurrent checkpoints; 1 if they are unaligned."""
    tolerable_failures: int = given_by(options.TOLERABLE_FAILURES)
    """Consecutive failures that do not fail the job."""
    retention: ExternalizedCheckpointRetention = given_by(options.CHECKPOINT_RETENTION)
    unaligned: bool = given_by(options.UNALIGNED)
    """Whether a checkpoint may contain unprocessed input."""
    aligned_timeout_ms: int = given_by(options.ALIGNED_TIMEOUT)
    """How long an unaligned checkpoint waits for the epoch to end."""
    num_retained: int = given_by(options.NUM_RETAINED)
    """Number of completed checkpoints that are kept."""
    incremental: bool = given_by(options.INCREMENTAL)
    """Whether a checkpoint stores only changes, if the backend supports it."""
    asynchronous: bool = given_by(options.ASYNCHRONOUS)
    """Whether epochs continue during the upload."""
    local_backup: bool = given_by(options.LOCAL_BACKUP)
    """Whether workers keep a copy of the newest checkpoint."""
    after_tasks_finish: bool = given_by(options.AFTER_TASKS_FINISH)
    """Whether checkpoints continue after some sources have ended."""
    create_subdir: bool = given_by(options.CREATE_SUBDIR)
    """Whether the job's id is part of the directory."""
    accept_duplicates: bool = given_by(options.ACCEPT_DUPLICATES)
    """Whether a recovery may go back beyond published output."""
    storage: CheckpointStorage
    transfer_threads: int = given_by(options.TRANSFER_THREADS)
    """Files, or outputs of subtasks, that an executor transfers at a time."""

    def cut_after(self, now: int, due: int | None) -> int | None:
        """Time after which a running epoch is cut for an unaligned checkpoint; None if never.

        Args:
            now: Start of the epoch, in milliseconds of the monotonic clock.
            due: When a checkpoint is due, on the same clock; None if one is in progress.
        """
        if not self.unaligned or self.interval_ms is None:
            return None
        # If one is in progress, the next is due an interval later at the earliest.
        due = now + self.interval_ms if due is None else due
        return due - now + self.aligned_timeout_ms


def checkpoint_settings(
    configuration: Configuration, storage: CheckpointStorage | None = None
) -> CheckpointSettings | None:
    """The checkpoint settings of a job, or None if it takes no checkpoints.

    Args:
        configuration: The settings of the job.
        storage: Where checkpoints are stored; by default as configured.

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
    # The pause would delay every shorter interval anyway.
    interval_ms = max(interval_ms, min(given(options.MIN_PAUSE), _YEAR_MS))
    return _settings(configuration, interval_ms, storage)


def savepoint_settings(configuration: Configuration) -> CheckpointSettings:
    """The settings for savepoints of a job without checkpoints."""
    return _settings(configuration, None, JobManagerCheckpointStorage())


def _settings(
    configuration: Configuration, interval_ms: int | None, storage: CheckpointStorage
) -> CheckpointSettings:
    given = {
        name: configuration.get(option) for name, option in options_of(CheckpointSettings).items()
    }
    given["min_pause_ms"] = min(given["min_pause_ms"], _YEAR_MS)
    return CheckpointSettings(interval_ms=interval_ms, storage=storage, **given)


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
