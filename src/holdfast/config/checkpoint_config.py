"""The checkpoint settings of a program, by the names that PyFlink gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.config import checkpoint_options as options
from holdfast.config.checkpoint_options import CheckpointingMode, ExternalizedCheckpointRetention
from holdfast.config.storage import CheckpointStorage, checkpoint_storage, configure_storage

if TYPE_CHECKING:
    import os
    from typing import Self

    from holdfast.config.configuration import Configuration
    from holdfast.config.options import ConfigOption, DurationLike

ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention
"""The name of `ExternalizedCheckpointRetention` in Flink 1.x."""

UNLIMITED_FAILURES: Final = 2**31 - 1
"""Number of tolerable failures that is never reached."""


class CheckpointConfig:
    """A view of the checkpoint options of a configuration.

    It keeps nothing itself: what a setter changes, the configuration holds, and what is
    set there is seen here. Times are in milliseconds where they are returned, and may be
    given as Flink writes them ("10 s") or as a `timedelta` as well. Setters return self.

    Example:
        >>> from holdfast.config.configuration import Configuration
        >>> config = CheckpointConfig(Configuration())
        >>> config.set_checkpoint_interval("10 s").get_checkpoint_interval()
        10000
    """

    def __init__(self, configuration: Configuration) -> None:
        """A view of `configuration`."""
        self._configuration = configuration

    def _set(self, option: ConfigOption[Any], value: object) -> Self:
        self._configuration.set(option, value)
        return self

    # When checkpoints are taken

    def is_checkpointing_enabled(self) -> bool:
        """Whether the job takes checkpoints."""
        return self.get_checkpoint_interval() is not None

    def get_checkpoint_interval(self) -> int | None:
        """Time from one checkpoint to the next, or None if none are taken."""
        return self._configuration.get(options.CHECKPOINT_INTERVAL)

    def set_checkpoint_interval(self, interval: DurationLike) -> Self:
        """Take a checkpoint so often, at least 10 ms apart."""
        return self._set(options.CHECKPOINT_INTERVAL, interval)

    def get_checkpoint_timeout(self) -> int:
        """Time after which a checkpoint that is not complete is given up."""
        return self._configuration.get(options.CHECKPOINT_TIMEOUT)

    def set_checkpoint_timeout(self, timeout: DurationLike) -> Self:
        """Give a checkpoint up that takes longer, at least 10 ms."""
        return self._set(options.CHECKPOINT_TIMEOUT, timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Least time from the completion of a checkpoint to the start of the next."""
        return self._configuration.get(options.MIN_PAUSE)

    def set_min_pause_between_checkpoints(self, pause: DurationLike) -> Self:
        """Leave so much time from a completion to the next start."""
        return self._set(options.MIN_PAUSE, pause)

    def get_max_concurrent_checkpoints(self) -> int:
        """Most checkpoints under way at a time."""
        return self._configuration.get(options.MAX_CONCURRENT_CHECKPOINTS)

    def set_max_concurrent_checkpoints(self, checkpoints: int) -> Self:
        """Allow so many checkpoints under way at a time."""
        return self._set(options.MAX_CONCURRENT_CHECKPOINTS, checkpoints)

    # What they promise

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly once or at least once."""
        return self._configuration.get(options.CHECKPOINTING_MODE)

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> Self:
        """Choose exactly once or at least once."""
        return self._set(options.CHECKPOINTING_MODE, mode)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Checkpoints that may fail one after another."""
        return self._configuration.get(options.TOLERABLE_FAILURES)

    def set_tolerable_checkpoint_failure_number(self, failures: int) -> Self:
        """Let so many checkpoints fail one after another; one more fails the job."""
        return self._set(options.TOLERABLE_FAILURES, failures)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Whether the first failed checkpoint fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail: bool) -> Self:
        """Let the first failed checkpoint fail the job, or none ever."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail else UNLIMITED_FAILURES)

    # Unaligned checkpoints

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether a checkpoint may store input that is not processed yet."""
        return self._configuration.get(options.UNALIGNED)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Let a checkpoint store input that is not processed yet; needs exactly once."""
        return self._set(options.UNALIGNED, enabled)

    def disable_unaligned_checkpoints(self) -> Self:
        """Let every checkpoint wait until its epoch has ended."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> int:
        """How long an unaligned checkpoint waits for the epoch to end."""
        return self._configuration.get(options.ALIGNED_TIMEOUT)

    def set_aligned_checkpoint_timeout(self, timeout: DurationLike) -> Self:
        """Let an unaligned checkpoint wait so long for the epoch to end."""
        return self._set(options.ALIGNED_TIMEOUT, timeout)

    def get_alignment_timeout(self) -> int:
        """The older name of `get_aligned_checkpoint_timeout`."""
        return self.get_aligned_checkpoint_timeout()

    def set_alignment_timeout(self, timeout: DurationLike) -> Self:
        """The older name of `set_aligned_checkpoint_timeout`."""
        return self.set_aligned_checkpoint_timeout(timeout)

    def is_force_unaligned_checkpoints(self) -> bool:
        """Whether unaligned checkpoints were forced."""
        return self._configuration.get(options.FORCE_UNALIGNED)

    def set_force_unaligned_checkpoints(self, forced: bool = True) -> Self:
        """Force unaligned checkpoints; Holdfast refuses them nowhere, so this changes nothing."""
        return self._set(options.FORCE_UNALIGNED, forced)

    # Where they are kept, and how long

    def get_checkpoint_storage(self) -> CheckpointStorage:
        """Where checkpoints are kept.

        Raises:
            ConfigurationError: The file system is asked for, and no directory is given.
        """
        return checkpoint_storage(self._configuration)

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> Self:
        """Keep checkpoints there; replaces what was set before, the directory included."""
        configure_storage(self._configuration, storage)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | os.PathLike[str]) -> Self:
        """Keep checkpoints in files under that directory."""
        self._set(options.CHECKPOINT_DIR, checkpoint_path)
        return self._set(options.CHECKPOINT_STORAGE, "filesystem")

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """What becomes of the newest checkpoints when the job has ended."""
        return self._configuration.get(options.CHECKPOINT_RETENTION)

    def set_externalized_checkpoint_retention(
        self, retention: ExternalizedCheckpointRetention
    ) -> Self:
        """Say what becomes of the newest checkpoints when the job has ended."""
        return self._set(options.CHECKPOINT_RETENTION, retention)

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether the newest checkpoints outlive a job that failed."""
        retention = self.get_externalized_checkpoint_retention()
        return retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def get_externalized_checkpoint_cleanup(self) -> ExternalizedCheckpointRetention:
        """The name of `get_externalized_checkpoint_retention` in Flink 1.x."""
        return self.get_externalized_checkpoint_retention()

    def enable_externalized_checkpoints(
        self, cleanup_mode: ExternalizedCheckpointRetention
    ) -> Self:
        """The name of `set_externalized_checkpoint_retention` in Flink 1.x."""
        return self.set_externalized_checkpoint_retention(cleanup_mode)
