"""The coordinator: events in, instructions out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.instructions import (
    Aborted,
    CheckpointKind,
    Completed,
    DiscardCheckpoint,
    FailJob,
    FailureReason,
    Finalize,
    Instruction,
    Participant,
    Retire,
)
from holdfast.config.checkpointing import savepoint_settings
from holdfast.config.configuration import Configuration
from holdfast.errors import ConfigurationError, JobExecutionError

A: Participant = ("count", 0)
B: Participant = ("count", 1)
FORCED = CheckpointKind.FORCED
SAVEPOINT = CheckpointKind.SAVEPOINT
LOST = FailureReason.CHECKPOINT_ASYNC_EXCEPTION
COUNTED = [
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    FailureReason.CHECKPOINT_EXPIRED,
    FailureReason.FINALIZE_CHECKPOINT_FAILURE,
]


def coordinator(*, next_id: int = 1, completed: tuple[int, ...] = (), **rules: Any) -> Coordinator:
    given = {"interval_ms": 100, "timeout_ms": 1_000} | rules
    settings = replace(savepoint_settings(Configuration()), **given)
    return Coordinator(settings, now=0, next_id=next_id, completed=completed)


def begun(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    """Begin a checkpoint of two participants and give its id."""
    checkpoint = job.trigger(now, [A, B], kind=kind)
    assert checkpoint is not None
    return checkpoint


def finalizing(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    """Begin a checkpoint and have it acknowledged by all."""
    checkpoint = begun(job, now, kind)
    job.acknowledge(checkpoint, A)
    job.acknowledge(checkpoint, B)
    return checkpoint


def completed(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    checkpoint = finalizing(job, now, kind)
    assert Completed(checkpoint) in job.stored(checkpoint, now)
    return checkpoint


def fails_the_job(instructions: list[Instruction]) -> bool:
    return any(isinstance(one, FailJob) for one in instructions)


def survived(job: Coordinator) -> int:
    """Let checkpoints fail until the job does; how many failures it survived."""
    count = 0
    while not fails_the_job(job.fail(begun(job), LOST)):
        count += 1
    return count


# When a periodic checkpoint begins


def test_the_first_periodic_checkpoint_begins_after_one_interval():
    job = coordinator()
    assert not job.due(99)
    assert job.next_due(40) == 100
    assert job.trigger(99, [A]) is None
    assert job.due(100)
    assert job.trigger(100, [A]) == 1


def test_an_overdue_checkpoint_is_due_now():
    assert coordinator().next_due(250) == 250


def test_the_interval_runs_from_the_last_periodic_start_whatever_was_forced_between():
    job = coordinator(max_concurrent=5)
    job.trigger(120, [A])
    begun(job, 190)
    assert job.next_due(190) == 220
    assert job.trigger(220, [A]) == 3


def test_the_minimum_pause_runs_from_the_last_completion():
    job = coordinator(min_pause_ms=80)
    job.trigger(100, [A])
    job.acknowledge(1, A)
    job.stored(1, 180)
    assert job.next_due(200) == 260
    assert job.trigger(259, [A]) is None
    assert job.trigger(260, [A]) == 2


def test_only_periodic_checkpoints_wait():
    job = coordinator(min_pause_ms=80)
    completed(job)
    assert job.trigger(1, [A], kind=FORCED) == 2
    assert job.trigger(1, [A], kind=SAVEPOINT) == 3


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_no_periodic_checkpoint_joins_as_many_in_flight_as_allowed(kind):
    job = coordinator()
    begun(job, 100, kind)
    assert not job.due(500)
    assert job.next_due(500) is None
    assert job.trigger(500, [A]) is None
    job.abort_all(FailureReason.EPOCH_FAILED)
    assert job.due(500)


def test_without_an_interval_only_what_is_asked_for_begins():
    job = coordinator(interval_ms=None)
    assert not job.due(10**9)
    assert job.next_due(10**9) is None
    assert job.trigger(10**9, [A]) is None
    assert job.trigger(10**9, [A], kind=SAVEPOINT) == 1


def test_a_skipped_trigger_uses_no_id():
    job = coordinator()
    job.trigger(0, [A])
    assert job.next_id == 1


def test_ids_go_on_after_failures_and_after_a_restore():
    job = coordinator(next_id=8, completed=(5, 7), tolerable_failures=9)
    assert begun(job) == 8
    job.fail(8, LOST)
    assert begun(job) == 9
    assert job.next_id == 10


# Acknowledging


def test_the_last_acknowledgement_finalizes():
    job = coordinator()
    checkpoint = begun(job)
    assert job.acknowledge(checkpoint, B) == []
    assert job.acknowledge(checkpoint, A) == [Finalize(1)]
    assert job.pending == (1,)
    assert job.stored(checkpoint, 9) == [Completed(1)]
    assert not job.pending
    assert job.retained == (1,)


def test_a_participant_acknowledges_once():
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A)
    assert job.acknowledge(checkpoint, A) == []
    assert job.acknowledge(checkpoint, B) == [Finalize(1)]
    assert job.acknowledge(checkpoint, B) == []


def test_an_acknowledgement_that_nobody_asked_for_has_no_effect():
    job = coordinator()
    checkpoint = begun(job)
    assert job.acknowledge(checkpoint, ("other", 0)) == []
    assert job.acknowledge(77, A) == []
    job.acknowledge(checkpoint, A)
    assert job.acknowledge(checkpoint, B) == [Finalize(1)]


def test_an_acknowledgement_after_an_abort_has_no_effect():
    job = coordinator(tolerable_failures=1)
    checkpoint = begun(job)
    job.fail(checkpoint, LOST)
    assert job.acknowledge(checkpoint, A) == []


@pytest.mark.parametrize("kind", [FORCED, SAVEPOINT])
def test_an_acknowledgement_after_the_completion_has_no_effect(kind):
    job = coordinator()
    checkpoint = completed(job, kind=kind)
    assert job.acknowledge(checkpoint, A) == []


# Failing


def test_a_failed_checkpoint_is_aborted_and_discarded():
    job = coordinator(tolerable_failures=1)
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A)
    assert job.fail(checkpoint, LOST, "disk full") == [
        Aborted(1, LOST, "disk full"),
        DiscardCheckpoint(1),
    ]
    assert job.pending == ()
    assert survived(job) == 0


def test_a_checkpoint_expires_when_it_is_as_old_as_the_timeout():
    job = coordinator(tolerable_failures=1)
    begun(job, 50)
    assert job.expire(1_049) == []
    assert job.expire(1_050) == [
        Aborted(1, FailureReason.CHECKPOINT_EXPIRED, "the timeout is 1000 ms"),
        DiscardCheckpoint(1),
    ]


def test_several_that_expire_together_fail_the_job_once():
    job = coordinator()
    begun(job)
    begun(job)
    instructions = job.expire(1_000)
    assert [type(one) for one in instructions].count(FailJob) == 1
    assert isinstance(instructions[-1], FailJob)
    assert job.pending == ()


@pytest.mark.parametrize("reason", COUNTED)
def test_the_job_fails_with_one_failure_more_than_tolerated(reason):
    job = coordinator(tolerable_failures=2)
    verdicts = [fails_the_job(job.fail(begun(job), reason)) for _ in range(6)]
    assert verdicts == [False, False, True, False, False, True]


@pytest.mark.parametrize("reason", [one for one in FailureReason if one not in COUNTED])
def test_other_reasons_are_not_counted(reason):
    job = coordinator(tolerable_failures=1)
    job.fail(begun(job), reason)
    assert survived(job) == 1


def test_a_failure_is_counted_once_however_often_it_is_reported():
    job = coordinator(tolerable_failures=5)
    checkpoint = begun(job)
    job.fail(checkpoint, LOST)
    assert job.fail(checkpoint, LOST) == []
    assert job.expire(5_000) == []
    assert survived(job) == 4


def test_a_success_starts_the_count_over():
    job = coordinator(tolerable_failures=1)
    job.fail(begun(job), LOST)
    completed(job)
    assert survived(job) == 1


def test_a_failure_older_than_the_last_success_is_not_counted():
    job = coordinator(tolerable_failures=1)
    older = begun(job)
    completed(job, kind=SAVEPOINT)
    assert Aborted(older, LOST) in (instructions := job.fail(older, LOST))
    assert not fails_the_job(instructions)
    assert survived(job) == 1


def test_an_older_success_does_not_start_the_count_over():
    job = coordinator(tolerable_failures=3)
    savepoint = finalizing(job, kind=SAVEPOINT)
    completed(job)
    job.fail(begun(job), LOST)
    job.stored(savepoint, 0)
    assert survived(job) == 2


def test_failed_savepoints_are_not_counted():
    job = coordinator(tolerable_failures=1)
    instructions = job.fail(begun(job, kind=SAVEPOINT), LOST)
    assert not fails_the_job(instructions)
    assert survived(job) == 1


def test_the_verdict_names_checkpoint_cause_and_option():
    job = coordinator()
    last = job.fail(begun(job), LOST, "disk full")[-1]
    assert isinstance(last, FailJob)
    for part in ("checkpoint 1", "disk full", "tolerable-failed-checkpoints"):
        assert part in last.reason


def test_aborting_all_is_no_failure_and_spares_what_is_complete():
    job = coordinator(tolerable_failures=1)
    first = completed(job)
    begun(job)
    begun(job, kind=SAVEPOINT)
    instructions = job.abort_all(FailureReason.JOB_RESTARTING)
    assert [one.id for one in instructions if isinstance(one, Aborted)] == [2, 3]
    assert [one.id for one in instructions if isinstance(one, DiscardCheckpoint)] == [2, 3]
    assert (job.pending, job.retained) == ((), (first,))
    assert survived(job) == 1


# Storing


def test_failing_to_store_counts_and_discards():
    job = coordinator(tolerable_failures=1)
    checkpoint = finalizing(job)
    assert job.store_failed(checkpoint, "access denied") == [
        Aborted(1, FailureReason.FINALIZE_CHECKPOINT_FAILURE, "access denied"),
        DiscardCheckpoint(1),
    ]
    assert fails_the_job(job.store_failed(finalizing(job), "access denied"))


def test_a_completion_subsumes_older_checkpoints_and_no_savepoints():
    job = coordinator(tolerable_failures=1)
    older, savepoint, newer, newest = begun(job), begun(job, kind=SAVEPOINT), begun(job), 4
    assert finalizing(job) == newest
    job.acknowledge(newer, A)
    assert job.stored(newest, 5) == [
        Completed(newest),
        Aborted(older, FailureReason.SUBSUMED),
        DiscardCheckpoint(older),
        Aborted(newer, FailureReason.SUBSUMED),
        DiscardCheckpoint(newer),
    ]
    assert job.pending == (savepoint,)
    assert survived(job) == 1


def test_a_completion_leaves_newer_checkpoints_alone():
    job = coordinator()
    older, newer = finalizing(job), begun(job)
    assert job.stored(older, 0) == [Completed(older)]
    assert job.pending == (newer,)


def test_a_savepoint_subsumes_nothing_and_is_not_retained():
    job = coordinator()
    first, pending = completed(job), begun(job)
    savepoint = completed(job, kind=SAVEPOINT)
    assert savepoint > pending
    assert (job.pending, job.retained) == ((pending,), (first,))


@pytest.mark.parametrize("written", [True, False])
def test_one_overtaken_while_its_metadata_is_written_is_discarded_when_that_has_ended(written):
    job = coordinator(tolerable_failures=1)
    older, newer = finalizing(job), finalizing(job)
    assert job.stored(newer, 1) == [
        Completed(newer),
        Aborted(older, FailureReason.SUBSUMED),
    ]
    assert job.in_doubt == (older,)
    discarded: list[Instruction] = [DiscardCheckpoint(older)]
    answer = job.stored(older, 2) if written else job.store_failed(older, "gone")
    assert answer == discarded
    assert not job.in_doubt
    assert job.retained == (newer,)
    assert job.stored(older, 3) == []
    assert survived(job) == 1


def test_one_that_expires_while_its_metadata_is_written_never_completes():
    job = coordinator(tolerable_failures=1)
    checkpoint = finalizing(job)
    expired = job.expire(1_000)
    assert [type(one) for one in expired] == [Aborted]
    assert job.stored(checkpoint, 1_001) == [DiscardCheckpoint(checkpoint)]
    assert job.retained == ()
    assert survived(job) == 0


def test_storing_twice_changes_nothing():
    job = coordinator()
    checkpoint = completed(job)
    assert job.stored(checkpoint, 1) == []
    assert job.store_failed(checkpoint, "late") == []
    assert job.retained == (checkpoint,)


@pytest.mark.parametrize("answer", ["stored", "store_failed"])
def test_metadata_written_too_early_is_refused(answer):
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A)
    with pytest.raises(JobExecutionError, match=r"checkpoint 1 .* 1 of 2 participants"):
        job.stored(checkpoint, 0) if answer == "stored" else job.store_failed(checkpoint, "")


def test_the_newest_are_retained_and_the_others_retired():
    job = coordinator(num_retained=2)
    completed(job)
    completed(job)
    assert job.stored(finalizing(job), 0) == [Completed(3), Retire(1)]
    assert job.retained == (2, 3)


def test_checkpoints_from_before_a_restore_are_retired_in_their_turn():
    job = coordinator(num_retained=2, next_id=9, completed=(8, 3, 5))
    assert job.retained == (3, 5, 8)
    assert job.stored(finalizing(job), 0) == [Completed(9), Retire(3), Retire(5)]


# What is refused


@pytest.mark.parametrize(("next_id", "past"), [(0, ()), (5, (5,)), (4, (2, 7))])
def test_an_id_used_before_is_refused(next_id, past):
    with pytest.raises(ConfigurationError, match="next_id"):
        coordinator(next_id=next_id, completed=past)
