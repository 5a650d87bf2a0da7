"""The checkpoint settings of a program, under PyFlink's names."""

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

    It has no data: setters change the configuration, and getters read it. Getters return times in
    milliseconds; setters also accept texts such as "10 s" and `timedelta`. Setters return self.

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
        """Take a checkpoint every `interval`, at least 10 ms."""
        return self._set(options.CHECKPOINT_INTERVAL, interval)

    def get_checkpoint_timeout(self) -> int:
        """Time after which an incomplete checkpoint is aborted."""
        return self._configuration.get(options.CHECKPOINT_TIMEOUT)

    def set_checkpoint_timeout(self, timeout: DurationLike) -> Self:
        """Abort checkpoints that take longer than `timeout`, at least 10 ms."""
        return self._set(options.CHECKPOINT_TIMEOUT, timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Minimum time from the completion of a checkpoint to the start of the next."""
        return self._configuration.get(options.MIN_PAUSE)

    def set_min_pause_between_checkpoints(self, pause: DurationLike) -> Self:
        """Set the minimum time from the completion of a checkpoint to the start of the next."""
        return self._set(options.MIN_PAUSE, pause)

    def get_max_concurrent_checkpoints(self) -> int:
        """Maximum number of concurrent checkpoints."""
        return self._configuration.get(options.MAX_CONCURRENT_CHECKPOINTS)

    def set_max_concurrent_checkpoints(self, checkpoints: int) -> Self:
        """Set the maximum number of concurrent checkpoints."""
        return self._set(options.MAX_CONCURRENT_CHECKPOINTS, checkpoints)

    # Guarantees and failures

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly once or at least once."""
        return self._configuration.get(options.CHECKPOINTING_MODE)

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> Self:
        """Set exactly once or at least once."""
        return self._set(options.CHECKPOINTING_MODE, mode)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Number of consecutive checkpoint failures that are tolerated."""
        return self._configuration.get(options.TOLERABLE_FAILURES)

    def set_tolerable_checkpoint_failure_number(self, failures: int) -> Self:
        """Tolerate `failures` consecutive checkpoint failures; one more fails the job."""
        return self._set(options.TOLERABLE_FAILURES, failures)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Whether the first failed checkpoint fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail: bool) -> Self:
        """Fail the job on the first failed checkpoint, or never."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail else UNLIMITED_FAILURES)

    # Unaligned checkpoints

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether a checkpoint may store unprocessed input."""
        return self._configuration.get(options.UNALIGNED)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Let checkpoints store unprocessed input; needs exactly once."""
        return self._set(options.UNALIGNED, enabled)

    def disable_unaligned_checkpoints(self) -> Self:
        """Let every checkpoint wait for the end of its epoch."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> int:
        """How long an unaligned checkpoint waits for the epoch to end."""
        return self._configuration.get(options.ALIGNED_TIMEOUT)

    def set_aligned_checkpoint_timeout(self, timeout: DurationLike) -> Self:
        """Set how long an unaligned checkpoint waits for the epoch to end."""
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
        """Force unaligned checkpoints; without effect, since Holdfast never rejects them."""
        return self._set(options.FORCE_UNALIGNED, forced)

    # Storage and retention

    def get_checkpoint_storage(self) -> CheckpointStorage:
        """Where checkpoints are stored.

        Raises:
            ConfigurationError: The storage is "filesystem", and no directory is set.
        """
        return checkpoint_storage(self._configuration)

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> Self:
        """Set the storage; replaces the previous one, including its directory."""
        configure_storage(self._configuration, storage)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | os.PathLike[str]) -> Self:
        """Store checkpoints in files under this directory."""
        self._set(options.CHECKPOINT_DIR, checkpoint_path)
        return self._set(options.CHECKPOINT_STORAGE, "filesystem")

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Whether the newest checkpoints are kept when the job ends."""
        return self._configuration.get(options.CHECKPOINT_RETENTION)

    def set_externalized_checkpoint_retention(
        self, retention: ExternalizedCheckpointRetention
    ) -> Self:
        """Set whether the newest checkpoints are kept when the job ends."""
        return self._set(options.CHECKPOINT_RETENTION, retention)

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether the newest checkpoints of a failed job are kept."""
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
