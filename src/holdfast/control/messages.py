"""The JSON of requests and answers, with Flink's names of fields.

Answers have no fields of Flink's that have no meaning here, such as slots.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

TriggerId = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", description="Id of the operation, of your choice.")
]
Directory = Annotated[str, Meta(min_length=1, description="Path or URL.")]
FormatType = Literal["CANONICAL", "NATIVE"]
State = Literal["RUNNING", "RESTARTING", "FINISHED", "CANCELED", "FAILED", "SUSPENDED"]

# Requests


class SavepointBody(
    Struct, forbid_unknown_fields=True, rename={"target_directory": "target-directory"}
):
    """A savepoint; null and missing fields have their defaults."""

    target_directory: Directory | None = None
    cancel_job: bool | None = msgspec.field(default=None, name="cancel-job")
    formatType: FormatType | None = None
    triggerId: TriggerId | None = None


class StopBody(Struct, forbid_unknown_fields=True):
    """A savepoint with which the job ends; null and missing fields have their defaults."""

    targetDirectory: Directory | None = None
    drain: bool | None = None
    formatType: FormatType | None = None
    triggerId: TriggerId | None = None


class CheckpointBody(Struct, forbid_unknown_fields=True):
    """A checkpoint; null and missing fields have their defaults."""

    checkpointType: Literal["CONFIGURED"] | None = None
    triggerId: TriggerId | None = None


class RescaleBody(Struct, forbid_unknown_fields=True):
    """How many subtasks a job gets."""

    parallelism: Annotated[int, Meta(ge=1, le=32768)]
    triggerId: TriggerId | None = None


class EmptyBody(Struct, forbid_unknown_fields=True):
    """No fields."""


# The driver


class Errors(Struct):
    """What is wrong with a request, or went wrong."""

    errors: list[str]


class Overview(Struct, rename="kebab"):
    """The jobs of the driver, counted."""

    taskmanagers: int
    """Python workers that ran the last epochs of running jobs."""
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    jobs_suspended: int
    holdfast_version: str


class Features(Struct, rename="kebab"):
    """What can be done over HTTP."""

    web_submit: bool = False
    web_cancel: bool = True


class Config(Struct, rename="kebab"):
    """Settings of the control server."""

    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    holdfast_version: str
    features: Features


# Jobs


class JobIdWithStatus(Struct):
    """A job and its status."""

    id: str
    status: State


class JobIds(Struct):
    """All jobs, ended ones last."""

    jobs: list[JobIdWithStatus]


class JobOverview(Struct, rename="kebab"):
    """A job in the list of all."""

    jid: str
    name: str
    state: State
    start_time: int
    end_time: int
    """-1 while it runs."""
    duration: int
    last_modification: int
    restarts: int


class JobOverviews(Struct):
    """All jobs, ended ones last."""

    jobs: list[JobOverview]


class VertexMetrics(Struct, rename="kebab"):
    """Rows that an operator has taken in and given out."""

    read_records: int
    write_records: int


class Vertex(Struct):
    """An operator."""

    id: str
    """Its uid."""
    name: str
    status: State
    metrics: VertexMetrics


class JobDetails(Struct, rename={"job_type": "job-type"}):
    """A job and its operators."""

    jid: str
    name: str
    isStoppable: bool
    state: State
    job_type: str
    start_time: int = msgspec.field(name="start-time")
    end_time: int = msgspec.field(name="end-time")
    duration: int
    maxParallelism: int
    """-1 if it is not set for the whole job."""
    now: int
    timestamps: dict[str, int]
    vertices: list[Vertex]
    restarts: int


class ExecutionConfig(Struct, rename="kebab"):
    """Settings of a job that Flink shows here."""

    restart_strategy: str
    job_parallelism: int
    """-1 if it is not set for the whole job."""
    object_reuse_mode: bool
    user_config: dict[str, str]
    """The job's parameters, without secrets."""


class JobConfig(Struct, rename="kebab"):
    """Settings of a job, without secrets."""

    jid: str
    name: str
    execution_config: ExecutionConfig
    configuration: dict[str, str]
    """The options that were set, by key."""


class RootException(Struct):
    """A failure of a job."""

    exceptionName: str
    stacktrace: str
    """Its message."""
    timestamp: int


class ExceptionHistory(Struct):
    """The newest failures, newest first."""

    entries: list[RootException]
    truncated: bool


class JobExceptions(Struct, rename={"root_exception": "root-exception"}):
    """The failures of a job."""

    root_exception: str | None
    """The failure that has ended the job, or the last one."""
    timestamp: int | None
    exceptionHistory: ExceptionHistory


# Operations


class Accepted(Struct):
    """The job has been told."""


class Triggered(Struct, rename="kebab"):
    """An operation has begun."""

    request_id: str


class QueueStatus(Struct):
    """Whether an operation has ended."""

    id: Literal["IN_PROGRESS", "COMPLETED"]


class FailureCause(Struct, rename={"stack_trace": "stack-trace", "class_name": "class"}):
    """Why an operation has failed."""

    class_name: str
    stack_trace: str
    """Its message."""


class SavepointInfo(Struct, rename="kebab", omit_defaults=True):
    """Path of a savepoint, or why it failed."""

    location: str | None = None
    failure_cause: FailureCause | None = None


class CheckpointInfo(Struct, omit_defaults=True, rename={"failure_cause": "failure-cause"}):
    """Id of a checkpoint, or why it failed."""

    checkpointId: int | None = None
    failure_cause: FailureCause | None = None


class SavepointStatus(Struct, omit_defaults=True):
    """Status of a savepoint."""

    status: QueueStatus
    operation: SavepointInfo | None = None


class CheckpointTriggerStatus(Struct, omit_defaults=True):
    """Status of a checkpoint that was requested."""

    status: QueueStatus
    operation: CheckpointInfo | None = None


class RescaleInfo(Struct, omit_defaults=True, rename={"failure_cause": "failure-cause"}):
    """The parallelism that a job has now, or why it has not."""

    parallelism: int | None = None
    failure_cause: FailureCause | None = None


class RescaleStatus(Struct, omit_defaults=True):
    """Status of a rescale."""

    status: QueueStatus
    operation: RescaleInfo | None = None
