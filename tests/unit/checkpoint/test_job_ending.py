"""What the end of a job deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import ExternalizedCheckpointRetention, JobStatus
from holdfast.checkpoint.files.endings import JobEnding

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
DELETE = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
RETAIN = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION


def deleting(ending: JobEnding) -> Iterator[ExternalizedCheckpointRetention]:
    return (one for one in (NONE, DELETE, RETAIN) if ending.deletes(one))


@pytest.mark.parametrize(
    ("status", "lasting_id", "expected"),
    [
        (JobStatus.FINISHED, True, [NONE, DELETE, RETAIN]),
        (JobStatus.FINISHED, False, [NONE, DELETE, RETAIN]),
        (JobStatus.CANCELED, True, [NONE, DELETE]),
        (JobStatus.CANCELED, False, [NONE, DELETE]),
        (JobStatus.FAILED, True, []),
        (JobStatus.FAILED, False, [NONE]),
    ],
)
def test_retention_decides_but_never_over_a_failed_job_with_an_id_of_its_own(
    status: JobStatus, lasting_id: bool, expected: list[ExternalizedCheckpointRetention]
) -> None:
    assert list(deleting(JobEnding(status, lasting_id))) == expected


@pytest.mark.parametrize(
    ("lasting_id", "savepoint", "deletes"),
    [(True, None, False), (False, None, True), (True, "/savepoint", True)],
)
def test_a_job_that_may_get_more_input_goes_on_from_its_checkpoints(
    lasting_id: bool, savepoint: str | None, deletes: bool
) -> None:
    ending = JobEnding(JobStatus.FINISHED, lasting_id, True, savepoint)
    assert list(deleting(ending)) == ([NONE, DELETE, RETAIN] if deletes else [])
