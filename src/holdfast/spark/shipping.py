"""Ships stages to workers: once per job attempt if they are large, and not with every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from holdfast.runtime.worker import JobRun
from holdfast.spark.serialization import dump_stage

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.core.broadcast import Broadcast

    from holdfast.job.model import JobIdentity
    from holdfast.runtime.plan import StagePlan
    from holdfast.state.store.process import ProcessIdentity

BROADCAST_FROM: Final = 64 * 1024
"""Size in bytes from which a stage is shipped once per job attempt."""


@dataclass(frozen=True, slots=True)
class ShippedStage:
    """A pickled stage, as the tasks of all epochs get it."""

    job: JobRun
    job_attempt: str
    digest: str
    """Tells stages apart."""
    kept_memory: int
    """See `StagePlan.kept_memory`."""
    _content: bytes | Broadcast[bytes]

    def pickled(self) -> bytes:
        """The `StagePlan`, pickled."""
        content = self._content
        return content if isinstance(content, bytes) else content.value


class StageShipping:
    """Ships the stages of one job attempt."""

    def __init__(self, context: SparkContext, job: JobIdentity, owner: ProcessIdentity) -> None:
        """Ship stages to the workers of `context`."""
        self._context = context
        self._attempt = job.job_attempt
        self._job = JobRun(job.local_dir, job.job_id, owner)
        self._broadcasts: list[Broadcast[bytes]] = []

    def ship(self, stage: StagePlan) -> ShippedStage:
        """Pickle a stage, functions of `__main__` and notebooks by value."""
        pickled = dump_stage(stage)
        content: bytes | Broadcast[bytes] = pickled
        if len(pickled) >= BROADCAST_FROM:
            content = self._context.broadcast(pickled)
            self._broadcasts.append(content)
        digest = xxhash.xxh3_128_hexdigest(pickled)
        return ShippedStage(self._job, self._attempt, digest, stage.kept_memory, content)

    def close(self) -> None:
        """Free what was shipped; no task follows."""
        for broadcast in self._broadcasts:
            broadcast.unpersist()
        self._broadcasts.clear()
