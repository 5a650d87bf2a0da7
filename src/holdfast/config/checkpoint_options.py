"""The options of checkpoints and of recovery, by Flink's keys."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.options import (
    ConfigOption,
    V,
    at_least,
    boolean,
    bounded,
    choice,
    declared_options,
    duration_ms,
    lasting,
    member,
    number,
    optional,
    path,
    size_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_INLINE_BYTES: Final = 1 << 20
"""Maximum size of state that is stored inside a checkpoint's metadata."""

LEAST_CHECKPOINT_MS: Final = 10
"""Minimum interval and timeout of checkpoints."""


class CheckpointingMode(Enum):
    """Whether a recovery may repeat results."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    """Every event counts once, in state and in sinks that commit with checkpoints."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """Results are published at the end of their epoch; a recovery may repeat them."""


class ExternalizedCheckpointRetention(Enum):
    """Whether the newest checkpoints are kept when a job ends."""

    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    """Kept when the job fails, deleted when it is cancelled."""
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    """Kept when the job fails and when it is cancelled."""
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    """Deleted however the job ends."""


class RecoveryClaimMode(Enum):
    """Who owns a snapshot's files after a job has started from it."""

    CLAIM = "CLAIM"
    """The job. It deletes the files when it no longer needs them."""
    NO_CLAIM = "NO_CLAIM"
    """The user. The job's first checkpoint does not depend on the files."""
    LEGACY = "LEGACY"
    """The user, who must keep the files while the job's checkpoints depend on them."""


class SavepointFormatType(Enum):
    """The format of a savepoint."""

    CANONICAL = "CANONICAL"
    """Parquet tables: any backend can restore them, any tool can read them."""
    NATIVE = "NATIVE"
    """Files of the state backend: faster, but only that backend can read them."""


def _without_effect(key: str, parse: Callable[[Any], V], default: V, what: str) -> ConfigOption[V]:
    return ConfigOption(key, parse, default, f"Accepted, without effect: {what}.", ignored=True)


_PREFIX: Final = "execution.checkpointing."

CHECKPOINT_INTERVAL: ConfigOption[int | None] = ConfigOption(
    f"{_PREFIX}interval",
    optional(lasting(LEAST_CHECKPOINT_MS)),
    None,
    "Time from one checkpoint to the next, at least 10 ms; no checkpoints if not given.",
)
CHECKPOINT_INTERVAL_DURING_BACKLOG: ConfigOption[int | None] = _without_effect(
    f"{_PREFIX}interval-during-backlog",
    optional(duration_ms),
    None,
    "the interval while a source works off a backlog, 0 or at least the interval",
)
CHECKPOINTING_MODE: ConfigOption[CheckpointingMode] = ConfigOption(
    f"{_PREFIX}mode",
    member(CheckpointingMode),
    CheckpointingMode.EXACTLY_ONCE,
    "EXACTLY_ONCE publishes output with its checkpoint, AT_LEAST_ONCE at the end of its epoch.",
)
CHECKPOINT_TIMEOUT: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}timeout",
    lasting(LEAST_CHECKPOINT_MS),
    600_000,
    "Time after which an incomplete checkpoint is aborted, at least 10 ms.",
)
MIN_PAUSE: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}min-pause",
    duration_ms,
    0,
    "Minimum time from the completion of a checkpoint to the start of the next.",
)
MAX_CONCURRENT_CHECKPOINTS: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}max-concurrent-checkpoints",
    at_least(1),
    1,
    "Maximum number of concurrent checkpoints; 1 with unaligned checkpoints.",
)
TOLERABLE_FAILURES: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}tolerable-failed-checkpoints",
    at_least(0),
    0,
    "Consecutive checkpoint failures that are tolerated; one more fails the job.",
)
CHECKPOINT_RETENTION: ConfigOption[ExternalizedCheckpointRetention] = ConfigOption(
    f"{_PREFIX}externalized-checkpoint-retention",
    member(ExternalizedCheckpointRetention),
    ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
    "Whether checkpoints outlive the job: DELETE_ON_CANCELLATION, RETAIN_ON_CANCELLATION or "
    "NO_EXTERNALIZED_CHECKPOINTS.",
)
UNALIGNED: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}unaligned.enabled",
    boolean,
    False,
    "Whether a checkpoint may store unprocessed input instead of waiting for it; "
    "needs EXACTLY_ONCE.",
    aliases=(f"{_PREFIX}unaligned",),
)
ALIGNED_TIMEOUT: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}aligned-checkpoint-timeout",
    duration_ms,
    0,
    "How long an unaligned checkpoint waits for the epoch to end before it stores the rest of "
    "the input; 0 does not wait.",
    aliases=(f"{_PREFIX}alignment-timeout",),
)
FORCE_UNALIGNED: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}unaligned.forced",
    boolean,
    False,
    "Unaligned checkpoints even where Flink rejects them; Holdfast never rejects them.",
)
AFTER_TASKS_FINISH: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}checkpoints-after-tasks-finish",
    boolean,
    True,
    "Whether checkpoints continue after some sources have ended, with a last one at the end; "
    "if not, output that waits for a checkpoint is not published.",
    aliases=(f"{_PREFIX}checkpoints-after-tasks-finish.enabled",),
)
CHECKPOINT_STORAGE: ConfigOption[str | None] = ConfigOption(
    f"{_PREFIX}storage",
    optional(choice("jobmanager", "filesystem")),
    None,
    "Where checkpoints are stored: jobmanager (in the driver) or filesystem (needs a directory); "
    "if not given, filesystem with a directory and jobmanager without.",
    aliases=("state.checkpoint-storage",),
)
CHECKPOINT_DIR: ConfigOption[str | None] = ConfigOption(
    f"{_PREFIX}dir",
    optional(path),
    None,
    "Directory of checkpoints; the driver and every executor must be able to access it.",
    aliases=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
)
SAVEPOINT_DIR: ConfigOption[str | None] = ConfigOption(
    f"{_PREFIX}savepoint-dir",
    optional(path),
    None,
    "Default directory of savepoints.",
    aliases=("state.savepoints.dir", "savepoints.state.backend.fs.dir"),
)
NUM_RETAINED: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}num-retained",
    at_least(1),
    1,
    "Number of completed checkpoints that are kept.",
    aliases=("state.checkpoints.num-retained",),
)
INCREMENTAL: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}incremental",
    boolean,
    False,
    "Whether a checkpoint stores only changes since the last one; RocksDB only.",
    aliases=("state.backend.incremental",),
)
INLINE_THRESHOLD: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}data-inline-threshold",
    bounded(size_bytes, lambda given: given <= MAX_INLINE_BYTES, "a size of at most 1 mb"),
    20 << 10,
    "State up to this size is stored inside the metadata; at most 1 mb.",
    aliases=("state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
)
WRITE_BUFFER_SIZE: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}write-buffer-size",
    bounded(size_bytes, lambda given: given >= 1, "a size of at least 1 byte"),
    4096,
    "Bytes that are buffered before a write to the checkpoint storage.",
    aliases=("state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
)
JOBMANAGER_MAX_STATE_SIZE: ConfigOption[int] = ConfigOption(
    f"{_PREFIX}jobmanager.max-state-size",
    bounded(size_bytes, lambda given: given >= 1, "a size of at least 1 byte"),
    5 << 20,
    "Maximum size of a subtask's state with jobmanager storage.",
)
CREATE_SUBDIR: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}create-subdir",
    boolean,
    True,
    "Whether checkpoints go to a subdirectory that is named by the job's id.",
    aliases=("state.checkpoints.create-subdir",),
)
LOCAL_BACKUP: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}local-backup.enabled",
    boolean,
    False,
    "Whether workers keep a copy of the newest checkpoint, to recover without a download.",
    aliases=("state.backend.local-recovery",),
)
ASYNCHRONOUS: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}asynchronous",
    boolean,
    True,
    "Whether epochs continue while a checkpoint is uploaded.",
    aliases=("state.backend.async",),
)
ACCEPT_DUPLICATES: ConfigOption[bool] = ConfigOption(
    f"{_PREFIX}accept-duplicates-on-fallback",
    boolean,
    False,
    "Whether a recovery may use a checkpoint that is older than published output, which repeats "
    "that output; otherwise the recovery fails.",
)
COMMITTER_TIMEOUT: ConfigOption[int] = ConfigOption(
    "sink.committer.timeout",
    lasting(LEAST_CHECKPOINT_MS),
    600_000,
    "Time that a sink has to publish the output of a checkpoint, and a listener to answer, at "
    "least 10 ms. After that the job fails; the output stays pending, and is published when the "
    "job has recovered.",
)
TRANSFER_THREADS: ConfigOption[int] = ConfigOption(
    "state.backend.rocksdb.checkpoint.transfer.thread.num",
    at_least(1),
    4,
    "Files, or outputs of subtasks, that one executor transfers at a time; with any state backend.",
)
RECOVERY_PATH: ConfigOption[str | None] = ConfigOption(
    "execution.state-recovery.path",
    optional(path),
    None,
    "Savepoint or checkpoint to start from.",
    aliases=("execution.savepoint.path",),
)
IGNORE_UNCLAIMED_STATE: ConfigOption[bool] = ConfigOption(
    "execution.state-recovery.ignore-unclaimed-state",
    boolean,
    False,
    "Whether state of operators that the program no longer has may be dropped.",
    aliases=("execution.savepoint.ignore-unclaimed-state",),
)
CLAIM_MODE: ConfigOption[RecoveryClaimMode] = ConfigOption(
    "execution.state-recovery.claim-mode",
    member(RecoveryClaimMode),
    RecoveryClaimMode.NO_CLAIM,
    "Who owns the files that the job was started from: CLAIM, NO_CLAIM or LEGACY.",
    aliases=("execution.savepoint-restore-mode",),
)


_MERGING: Final = f"{_PREFIX}file-merging."

CHECKPOINT_OPTIONS: Final[tuple[ConfigOption[Any], ...]] = (
    *declared_options(globals()),
    _without_effect(
        f"{_MERGING}enabled", boolean, False, "whether small checkpoint files are merged"
    ),
    _without_effect(
        f"{_MERGING}across-checkpoint-boundary",
        boolean,
        False,
        "whether files of several checkpoints are merged",
    ),
    _without_effect(f"{_MERGING}max-file-size", size_bytes, 32 << 20, "largest merged file"),
    _without_effect(
        f"{_MERGING}pool-blocking", boolean, False, "whether writers wait for a merged file"
    ),
    _without_effect(
        f"{_MERGING}max-subtasks-per-file", at_least(1), 4, "most subtasks that share a merged file"
    ),
    _without_effect(
        f"{_MERGING}max-space-amplification", number, 2.0, "how much waste a merged file may hold"
    ),
    _without_effect(
        f"{_PREFIX}during-recovery.enabled",
        boolean,
        False,
        "whether checkpoints are taken while a job recovers",
    ),
    _without_effect(
        "pipeline.sources.pause-until-first-checkpoint",
        boolean,
        False,
        "whether sources wait for the first checkpoint",
    ),
)
"""All options of checkpoints and recovery, in the order of the documentation."""
