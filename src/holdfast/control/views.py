"""Answers about jobs, made from their records."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._version import VERSION
from holdfast.api.metrics import Histogram
from holdfast.config.configuration import (
    MAX_PARALLELISM,
    PARALLELISM,
    Configuration,
    read_setting,
)
from holdfast.config.restart_options import RESTART_STRATEGY
from holdfast.control import messages
from holdfast.control.secrecy import shown_settings
from holdfast.job.statistics import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.control.jobs import JobRecord
    from holdfast.control.operations import Operation

REFRESH_MS = 3000
"""How often a page that shows jobs should ask again."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def settings_of(record: JobRecord) -> Configuration:
    """The configuration of a job, with all defaults."""
    configuration = Configuration()
    for key, value in record.configuration.items():
        configuration.take(read_setting(key, value))
    return configuration


def overview(records: Iterable[JobRecord]) -> messages.Overview:
    """The jobs of the driver, counted."""
    states = [record.statistics.status for record in records]
    workers = [record.statistics.workers for record in records if record.end_time is None]
    return messages.Overview(
        taskmanagers=max((one.workers for one in workers if one is not None), default=0),
        jobs_running=sum(not state.is_terminal for state in states),
        jobs_finished=states.count(JobStatus.FINISHED),
        jobs_cancelled=states.count(JobStatus.CANCELED),
        jobs_failed=states.count(JobStatus.FAILED),
        jobs_suspended=states.count(JobStatus.SUSPENDED),
        holdfast_version=VERSION,
    )


def config() -> messages.Config:
    """Settings of the control server."""
    here = datetime.now().astimezone()
    offset = here.utcoffset()
    return messages.Config(
        refresh_interval=REFRESH_MS,
        timezone_name=here.tzname() or "UTC",
        timezone_offset=0 if offset is None else int(offset.total_seconds() * 1000),
        holdfast_version=VERSION,
        features=messages.Features(),
    )


def job_ids(records: Iterable[JobRecord]) -> messages.JobIds:
    """All jobs and their status."""
    found = (record.statistics for record in records)
    return messages.JobIds(
        [messages.JobIdWithStatus(one.job_id, one.status.value) for one in found]
    )


def job_overviews(records: Iterable[JobRecord]) -> messages.JobOverviews:
    """All jobs."""
    return messages.JobOverviews([_job_overview(record) for record in records])


def _job_overview(record: JobRecord) -> messages.JobOverview:
    statistics = record.statistics
    changes = [record.start_time, record.end_time or 0, *(one.timestamp for one in record.failures)]
    return messages.JobOverview(
        jid=statistics.job_id,
        name=statistics.name,
        state=statistics.status.value,
        start_time=record.start_time,
        end_time=_end_time(record),
        duration=record.duration,
        last_modification=max(changes),
        restarts=statistics.restarts,
    )


def job_details(record: JobRecord) -> messages.JobDetails:
    """A job and its operators."""
    statistics = record.statistics
    state = statistics.status
    timestamps = {JobStatus.RUNNING.value: record.start_time}
    if record.end_time is not None:
        timestamps[state.value] = record.end_time
    limit = settings_of(record).get(MAX_PARALLELISM)
    return messages.JobDetails(
        jid=statistics.job_id,
        name=statistics.name,
        isStoppable=not state.is_terminal,
        state=state.value,
        job_type="STREAMING",
        start_time=record.start_time,
        end_time=_end_time(record),
        duration=record.duration,
        maxParallelism=-1 if limit is None else limit,
        now=record.now,
        timestamps=timestamps,
        vertices=[
            messages.Vertex(
                id=uid,
                name=one.name,
                status=state.value,
                metrics=messages.VertexMetrics(one.records_in, one.records_out),
            )
            for uid, one in statistics.operators.items()
        ],
        restarts=statistics.restarts,
    )


def _end_time(record: JobRecord) -> int:
    return -1 if record.end_time is None else record.end_time


def job_config(record: JobRecord) -> messages.JobConfig:
    """Settings of a job, without secrets."""
    settings = settings_of(record)
    parallelism = settings.get(PARALLELISM)
    return messages.JobConfig(
        jid=record.statistics.job_id,
        name=record.statistics.name,
        execution_config=messages.ExecutionConfig(
            restart_strategy=settings.get(RESTART_STRATEGY) or "default",
            job_parallelism=-1 if parallelism is None else parallelism,
            object_reuse_mode=False,
            user_config=shown_settings(record.job_parameters),
        ),
        configuration=shown_settings(record.configuration),
    )


def job_exceptions(record: JobRecord) -> messages.JobExceptions:
    """The failures of a job."""
    entries = [
        messages.RootException(one.error, one.message, one.timestamp)
        for one in reversed(record.failures)
    ]
    last = entries[0] if entries else None
    return messages.JobExceptions(
        root_exception=record.failure or (None if last is None else last.stacktrace),
        timestamp=None if last is None else last.timestamp,
        exceptionHistory=messages.ExceptionHistory(
            entries, truncated=record.statistics.restarts > len(entries)
        ),
    )


def statistics(record: JobRecord) -> Any:
    """All statistics of a job."""
    return msgspec.to_builtins(record.statistics, enc_hook=_figure, str_keys=True)


def _figure(value: object) -> Any:
    if not isinstance(value, Histogram):
        return str(value)
    figures = {"count": value.count, "min": value.minimum, "max": value.maximum}
    mean = value.total / value.count if value.count else None
    quantiles = {name: value.quantile(q) for name, q in QUANTILES.items()}
    return {**figures, "mean": mean, **quantiles}


def savepoint_status(operation: Operation) -> messages.SavepointStatus:
    """Status of a savepoint."""
    if operation.is_running:
        return messages.SavepointStatus(messages.QueueStatus("IN_PROGRESS"))
    location = None if operation.result is None else str(operation.result)
    info = messages.SavepointInfo(location, _cause(operation))
    return messages.SavepointStatus(messages.QueueStatus("COMPLETED"), info)


def checkpoint_status(operation: Operation) -> messages.CheckpointTriggerStatus:
    """Status of a checkpoint that was requested."""
    if operation.is_running:
        return messages.CheckpointTriggerStatus(messages.QueueStatus("IN_PROGRESS"))
    checkpoint_id = operation.result if isinstance(operation.result, int) else None
    info = messages.CheckpointInfo(checkpoint_id, _cause(operation))
    return messages.CheckpointTriggerStatus(messages.QueueStatus("COMPLETED"), info)


def rescale_status(operation: Operation) -> messages.RescaleStatus:
    """Status of a rescale."""
    if operation.is_running:
        return messages.RescaleStatus(messages.QueueStatus("IN_PROGRESS"))
    parallelism = operation.result if isinstance(operation.result, int) else None
    info = messages.RescaleInfo(parallelism, _cause(operation))
    return messages.RescaleStatus(messages.QueueStatus("COMPLETED"), info)


def _cause(operation: Operation) -> messages.FailureCause | None:
    error = operation.error
    if error is None:
        return None
    kind = type(error)
    return messages.FailureCause(f"{kind.__module__}.{kind.__qualname__}", str(error))
