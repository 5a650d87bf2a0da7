"""The routes of the control server, and what each does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException

from holdfast.config.checkpoint_options import SAVEPOINT_DIR, SavepointFormatType
from holdfast.control import checkpoint_messages, messages, views
from holdfast.control.operations import (
    OperationKind,
    Operations,
    OtherOperationError,
    TooManyOperationsError,
)
from holdfast.job.statistics import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.control.jobs import ControlledJob, JobRecord, Jobs
    from holdfast.control.operations import Operation
    from holdfast.job.statistics import CheckpointingStatistics

logger = logging.getLogger("holdfast")

SAVEPOINTS: Final = (OperationKind.SAVEPOINT, OperationKind.STOP)


@dataclass(frozen=True, slots=True)
class Call:
    """A request: the parameters of its path, and its body."""

    path: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route: what it does, takes and answers."""

    method: str
    path: str
    summary: str
    handle: Callable[[Call], Any]
    answer: Any
    body: Any = None
    """Type of its body; None if it takes none."""
    status: int = 200
    """Status code of a success."""
    errors: tuple[int, ...] = ()
    """Status codes of failures, besides those of every route."""
    query: Mapping[str, tuple[str, ...]] | None = None
    """Parameters of the query, and their values; None if the query is ignored."""


class Handlers:
    """What the routes do with the jobs of a driver."""

    def __init__(self, jobs: Jobs, operations: Operations) -> None:
        """Serve these jobs."""
        self._jobs = jobs
        self._operations = operations

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All routes but the description of them."""
        job, get = "/jobs/{job_id}", partial(Endpoint, "GET")
        return (
            get("/overview", "The jobs of the driver, counted", self._overview, messages.Overview),
            get("/config", "Settings of this server", lambda call: views.config(), messages.Config),
            get("/jobs", "All jobs and their status", self._job_ids, messages.JobIds),
            get("/jobs/overview", "All jobs", self._overviews, messages.JobOverviews),
            get(
                job,
                "A job and its operators",
                self._shown(views.job_details),
                messages.JobDetails,
                errors=(404,),
            ),
            get(
                f"{job}/config",
                "Settings of a job, without secrets",
                self._shown(views.job_config),
                messages.JobConfig,
                errors=(404,),
            ),
            get(
                f"{job}/exceptions",
                "Failures of a job",
                self._shown(views.job_exceptions),
                messages.JobExceptions,
                errors=(404,),
            ),
            get(
                f"{job}/statistics",
                "All statistics of a job",
                self._shown(views.statistics),
                dict[str, Any],
                errors=(404,),
            ),
            get(
                f"{job}/checkpoints",
                "Checkpoints of a job",
                self._checkpoints,
                checkpoint_messages.Checkpoints,
                errors=(404,),
            ),
            get(
                f"{job}/checkpoints/config",
                "Checkpoint settings of a job",
                self._checkpoint_config,
                checkpoint_messages.CheckpointConfig,
                errors=(404,),
            ),
            get(
                f"{job}/checkpoints/details/{{checkpoint_id}}",
                "A checkpoint and its operators",
                self._checkpoint,
                checkpoint_messages.Checkpoint,
                errors=(404,),
            ),
            get(
                f"{job}/checkpoints/{{trigger_id}}",
                "Status of a checkpoint that was requested",
                self._checkpoint_status,
                messages.CheckpointTriggerStatus,
                errors=(404,),
            ),
            get(
                f"{job}/savepoints/{{trigger_id}}",
                "Status of a savepoint",
                self._savepoint_status,
                messages.SavepointStatus,
                errors=(404,),
            ),
            get(
                f"{job}/rescaling/{{trigger_id}}",
                "Status of a rescale",
                self._rescale_status,
                messages.RescaleStatus,
                errors=(404,),
            ),
            _post(
                f"{job}/rescaling",
                "Go on with another number of subtasks, from a checkpoint",
                self._rescale,
                messages.Triggered,
                messages.RescaleBody,
            ),
            _post(
                f"{job}/checkpoints",
                "Take a checkpoint",
                self._take_checkpoint,
                messages.Triggered,
                messages.CheckpointBody,
            ),
            _post(
                f"{job}/savepoints",
                "Take a savepoint, and cancel the job if that is wanted",
                self._take_savepoint,
                messages.Triggered,
                messages.SavepointBody,
            ),
            _post(
                f"{job}/stop",
                "Take a savepoint, and finish the job",
                self._stop,
                messages.Triggered,
                messages.StopBody,
            ),
            _post(
                f"{job}/suspend",
                "End the job, so that another start continues it",
                self._suspend,
                messages.Accepted,
                messages.EmptyBody,
            ),
            Endpoint(
                "PATCH",
                job,
                "Cancel the job",
                self._cancel,
                messages.Accepted,
                messages.EmptyBody,
                202,
                (400, 404, 409, 413, 429),
                {"mode": ("cancel",)},
            ),
        )

    # What is shown

    def _overview(self, call: Call) -> messages.Overview:
        return views.overview(self._jobs.records())

    def _job_ids(self, call: Call) -> messages.JobIds:
        return views.job_ids(self._jobs.records())

    def _overviews(self, call: Call) -> messages.JobOverviews:
        return views.job_overviews(self._jobs.records())

    def _shown(self, view: Callable[[JobRecord], Any]) -> Callable[[Call], Any]:
        return lambda call: view(self._record(call))

    def _record(self, call: Call) -> JobRecord:
        record = self._jobs.record(call.path["job_id"])
        if record is None:
            known = ", ".join(self._jobs.ids()) or "none"
            raise HTTPException(404, f"there is no job {call.path['job_id']!r}; jobs: {known}")
        return record

    def _checkpointing(self, call: Call) -> CheckpointingStatistics:
        record = self._record(call)
        if record.statistics.checkpoints is None:
            raise HTTPException(404, f"job {call.path['job_id']!r} takes no checkpoints")
        return record.statistics.checkpoints

    def _checkpoints(self, call: Call) -> checkpoint_messages.Checkpoints:
        return checkpoint_messages.checkpoints(self._checkpointing(call))

    def _checkpoint(self, call: Call) -> checkpoint_messages.Checkpoint:
        statistics, given = self._checkpointing(call), call.path["checkpoint_id"]
        number = int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else -1
        found = checkpoint_messages.checkpoint_details(statistics, number)
        if found is None:
            known = ", ".join(str(one.id) for one in statistics.history) or "none"
            raise HTTPException(404, f"there is no checkpoint {given!r} among the newest: {known}")
        return found

    def _checkpoint_config(self, call: Call) -> checkpoint_messages.CheckpointConfig:
        found = checkpoint_messages.checkpoint_config(views.settings_of(self._record(call)))
        if found is None:
            raise HTTPException(404, f"job {call.path['job_id']!r} takes no checkpoints")
        return found

    # Operations

    def _savepoint_status(self, call: Call) -> messages.SavepointStatus:
        return views.savepoint_status(self._operation(call, "savepoint", SAVEPOINTS))

    def _checkpoint_status(self, call: Call) -> messages.CheckpointTriggerStatus:
        operation = self._operation(call, "checkpoint", (OperationKind.CHECKPOINT,))
        return views.checkpoint_status(operation)

    def _rescale_status(self, call: Call) -> messages.RescaleStatus:
        operation = self._operation(call, "rescale", (OperationKind.RESCALE,))
        return views.rescale_status(operation)

    def _operation(self, call: Call, what: str, kinds: tuple[OperationKind, ...]) -> Operation:
        operation = self._operations.fetch(call.path["job_id"], call.path["trigger_id"])
        if operation is None or operation.kind not in kinds:
            self._record(call)
            raise HTTPException(
                404, f"no {what} was requested with the id {call.path['trigger_id']!r}"
            )
        return operation

    def _take_checkpoint(self, call: Call) -> messages.Triggered:
        body: messages.CheckpointBody = call.body
        return self._triggered(
            call, OperationKind.CHECKPOINT, body.triggerId, lambda job: job.trigger_checkpoint()
        )

    def _rescale(self, call: Call) -> messages.Triggered:
        body: messages.RescaleBody = call.body
        parallelism = body.parallelism

        def rescale(job: ControlledJob) -> int:
            job.rescale(parallelism)
            return parallelism

        return self._triggered(call, OperationKind.RESCALE, body.triggerId, rescale)

    def _take_savepoint(self, call: Call) -> messages.Triggered:
        body: messages.SavepointBody = call.body
        where, form = body.target_directory, _format(body.formatType)
        self._check_directory(call, where, "target-directory")

        def take(job: ControlledJob) -> str:
            if body.cancel_job:
                return job.cancel_with_savepoint(where, form)
            return job.trigger_savepoint(where, form)

        return self._triggered(call, OperationKind.SAVEPOINT, body.triggerId, take)

    def _stop(self, call: Call) -> messages.Triggered:
        body: messages.StopBody = call.body
        where, form, drain = body.targetDirectory, _format(body.formatType), bool(body.drain)
        self._check_directory(call, where, "targetDirectory")
        return self._triggered(
            call,
            OperationKind.STOP,
            body.triggerId,
            lambda job: job.stop_with_savepoint(where, drain=drain, format_type=form),
        )

    def _cancel(self, call: Call) -> messages.Accepted:
        cancel = _noted("cancel", lambda job: job.cancel())
        self._begin(call, OperationKind.CANCEL, "cancel", cancel)
        return messages.Accepted()

    def _suspend(self, call: Call) -> messages.Accepted:
        suspend = _noted("suspend", lambda job: job.suspend())
        self._begin(call, OperationKind.SUSPEND, "suspend", suspend)
        return messages.Accepted()

    def _check_directory(self, call: Call, given: str | None, field: str) -> None:
        if given is None and views.settings_of(self._record(call)).get(SAVEPOINT_DIR) is None:
            raise HTTPException(
                400,
                f"{field}: there is no directory for the savepoint; give one, or set "
                f"{SAVEPOINT_DIR.key} for the job",
            )

    def _triggered(
        self,
        call: Call,
        kind: OperationKind,
        operation_id: str | None,
        work: Callable[[ControlledJob], str | int],
    ) -> messages.Triggered:
        known = self._operations.find(call.path["job_id"], operation_id or "")
        # The job may have ended since, and the operation is the same all the same.
        if known is None or known.kind is not kind:
            known = self._begin(call, kind, operation_id, work)
        return messages.Triggered(known.id)

    def _begin(
        self,
        call: Call,
        kind: OperationKind,
        operation_id: str | None,
        work: Callable[[ControlledJob], str | int | None],
    ) -> Operation:
        """Begin an operation of a job that runs."""
        job_id = call.path["job_id"]
        status = self._record(call).statistics.status
        job = self._jobs.running(job_id)
        # A job that waits for its restart can be ended, and nothing else.
        if job is None or (kind.has_result and status is not JobStatus.RUNNING):
            now = self._record(call).statistics.status.value
            raise HTTPException(409, f"job {job_id!r} is {now}, and does not run")
        try:
            return self._operations.begin(kind, job_id, operation_id, partial(work, job))
        except OtherOperationError as error:
            what = f"the id {operation_id!r} belongs to another operation: {error}"
            raise HTTPException(409, f"triggerId: {what}") from None
        except TooManyOperationsError as error:
            raise HTTPException(429, f"{error} operations run already; try again later") from None


def _post(
    path: str, summary: str, handle: Callable[[Call], Any], answer: Any, body: Any
) -> Endpoint:
    return Endpoint("POST", path, summary, handle, answer, body, 202, (400, 404, 409, 413, 429))


def _format(given: str | None) -> SavepointFormatType:
    return SavepointFormatType[given or "CANONICAL"]


def _noted(what: str, work: Callable[[ControlledJob], None]) -> Callable[[ControlledJob], None]:
    """Work whose failure is logged, since no client asks for its result."""

    def run(job: ControlledJob) -> None:
        try:
            work(job)
        except Exception as error:
            logger.warning("could not %s job %r: %s", what, job.name, error)

    return run
