"""The coordinator: events in, instructions out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.failures import FailureReason
from holdfast.checkpoint.instructions import (
    Aborted,
    Begin,
    CancelUpload,
    CheckpointKind,
    Completed,
    DiscardCheckpoint,
    DiscardPayload,
    FailJob,
    Finalize,
    Instruction,
    Participant,
    Retire,
    Skipped,
    SkipReason,
)
from holdfast.checkpoint.policy import CoordinatorPolicy
from holdfast.errors import ConfigurationError, JobExecutionError

A: Participant = ("count", 0)
B: Participant = ("count", 1)
FORCED = CheckpointKind.FORCED
SAVEPOINT = CheckpointKind.SAVEPOINT
COUNTED = [
    FailureReason.IO_EXCEPTION,
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    FailureReason.CHECKPOINT_DECLINED,
    FailureReason.CHECKPOINT_EXPIRED,
    FailureReason.FINALIZE_CHECKPOINT_FAILURE,
]


def coordinator(*, next_id: int = 1, completed: tuple[int, ...] = (), **rules: Any) -> Coordinator:
    policy = CoordinatorPolicy(**({"interval_ms": 100, "timeout_ms": 1_000} | rules))
    return Coordinator(policy, now=0, next_id=next_id, completed=completed)


def begun(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    """Begin a checkpoint of two participants and give its id."""
    [begin] = job.trigger(now, [A, B], kind=kind)
    assert isinstance(begin, Begin)
    return begin.id


def finalizing(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    """Begin a checkpoint and have it acknowledged by all."""
    checkpoint = begun(job, now, kind)
    job.acknowledge(checkpoint, A, now, "a")
    job.acknowledge(checkpoint, B, now, "b")
    return checkpoint


def completed(job: Coordinator, now: int = 0, kind: CheckpointKind = FORCED) -> int:
    checkpoint = finalizing(job, now, kind)
    assert Completed(checkpoint, now) in job.stored(checkpoint, now)
    return checkpoint


def fails_the_job(instructions: list[Instruction]) -> bool:
    return any(isinstance(one, FailJob) for one in instructions)


# When a periodic checkpoint begins


def test_the_first_periodic_checkpoint_begins_after_one_interval():
    job = coordinator()
    assert not job.due(99)
    assert job.next_due(40) == 100
    assert job.trigger(99, [A]) == [Skipped(SkipReason.INTERVAL)]
    assert job.due(100)
    assert job.trigger(100, [A]) == [Begin(1, 100)]


def test_an_overdue_checkpoint_is_due_now():
    assert coordinator().next_due(250) == 250


def test_the_interval_runs_from_the_last_periodic_start_whatever_was_forced_between():
    job = coordinator(max_concurrent=5)
    job.trigger(120, [A])
    begun(job, 190)
    assert job.next_due(190) == 220
    assert job.trigger(220, [A]) == [Begin(3, 220)]


def test_the_minimum_pause_runs_from_the_last_completion():
    job = coordinator(min_pause_ms=80)
    job.trigger(100, [A])
    job.acknowledge(1, A, 170, "a")
    job.stored(1, 180)
    assert job.next_due(200) == 260
    assert job.trigger(259, [A]) == [Skipped(SkipReason.MIN_PAUSE)]
    assert job.trigger(260, [A]) == [Begin(2, 260)]


def test_only_periodic_checkpoints_wait():
    job = coordinator(min_pause_ms=80)
    completed(job)
    assert job.trigger(1, [A], kind=FORCED) == [Begin(2, 1)]
    assert job.trigger(1, [A], kind=SAVEPOINT) == [Begin(3, 1)]


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_no_periodic_checkpoint_joins_as_many_in_flight_as_allowed(kind):
    job = coordinator()
    begun(job, 100, kind)
    assert not job.due(500)
    assert job.next_due(500) is None
    assert job.trigger(500, [A]) == [Skipped(SkipReason.TOO_MANY_PENDING)]
    job.abort_all(500, FailureReason.EPOCH_FAILED)
    assert job.due(500)


def test_without_an_interval_only_what_is_asked_for_begins():
    job = coordinator(interval_ms=None)
    assert not job.due(10**9)
    assert job.next_due(10**9) is None
    assert job.trigger(10**9, [A]) == [Skipped(SkipReason.DISABLED)]
    assert job.trigger(10**9, [A], kind=SAVEPOINT) == [Begin(1, 10**9)]


def test_a_skipped_trigger_uses_no_id():
    job = coordinator()
    job.trigger(0, [A])
    assert job.next_id == 1


def test_ids_go_on_after_failures_and_after_a_restore():
    job = coordinator(next_id=8, completed=(5, 7), tolerable_failures=9)
    assert begun(job) == 8
    job.fail(8, FailureReason.IO_EXCEPTION, 0)
    assert begun(job) == 9
    assert job.next_id == 10


# Acknowledging


def test_the_last_acknowledgement_finalizes_with_all_payloads():
    job = coordinator()
    checkpoint = begun(job)
    assert job.acknowledge(checkpoint, B, 5, "b") == []
    assert job.acknowledge(checkpoint, A, 6, "a") == [Finalize(1, {A: "a", B: "b"}, 6)]
    assert job.pending == (1,)
    assert job.stored(checkpoint, 9) == [Completed(1, 9)]
    assert not job.pending
    assert job.retained == (1,)


def test_a_checkpoint_nobody_takes_part_in_is_finalized_at_once():
    job = coordinator()
    assert job.trigger(100, []) == [Begin(1, 100), Finalize(1, {}, 100)]
    assert job.stored(1, 101) == [Completed(1, 101)]


def test_a_second_payload_of_one_participant_is_discarded_and_the_first_kept():
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A, 0, "a")
    assert job.acknowledge(checkpoint, A, 0, "other") == [DiscardPayload("other")]
    assert job.acknowledge(checkpoint, B, 0, "b") == [Finalize(1, {A: "a", B: "b"}, 0)]
    assert job.acknowledge(checkpoint, B, 0, "other") == [DiscardPayload("other")]


def test_the_same_payload_once_more_is_not_discarded_since_the_checkpoint_holds_it():
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A, 0, "a")
    assert job.acknowledge(checkpoint, A, 0, "a") == []


def test_what_nobody_asked_for_is_discarded():
    job = coordinator()
    checkpoint = begun(job)
    assert job.acknowledge(checkpoint, ("other", 0), 0, "x") == [DiscardPayload("x")]
    assert job.acknowledge(77, A, 0, "y") == [DiscardPayload("y")]


def test_what_comes_after_an_abort_is_discarded():
    job = coordinator(tolerable_failures=1)
    checkpoint = begun(job)
    job.fail(checkpoint, FailureReason.IO_EXCEPTION, 0)
    assert job.acknowledge(checkpoint, A, 0, "a") == [DiscardPayload("a")]


@pytest.mark.parametrize("kind", [FORCED, SAVEPOINT])
def test_nothing_of_a_completed_checkpoint_is_discarded_by_a_late_acknowledgement(kind):
    job = coordinator()
    checkpoint = completed(job, kind=kind)
    assert job.acknowledge(checkpoint, A, 0, "a") == []


def test_what_comes_for_a_retired_checkpoint_is_discarded():
    job = coordinator()
    first, _ = completed(job), completed(job)
    assert job.acknowledge(first, A, 0, "a") == [DiscardPayload("a")]


# Failing


def test_a_declined_checkpoint_is_aborted_and_discarded_with_what_was_handed_in():
    job = coordinator(tolerable_failures=1)
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A, 1, "a")
    assert job.decline(checkpoint, B, "disk full", 2) == [
        Aborted(1, FailureReason.CHECKPOINT_DECLINED, 2, "count, subtask 1: disk full"),
        CancelUpload(1),
        DiscardCheckpoint(1, {A: "a"}),
    ]
    assert job.pending == ()
    assert job.consecutive_failures == 1


def test_who_has_acknowledged_or_takes_no_part_cannot_decline():
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A, 0, "a")
    assert job.decline(checkpoint, A, "too late", 0) == []
    assert job.decline(checkpoint, ("other", 0), "not asked", 0) == []
    assert job.decline(99, A, "unknown", 0) == []
    assert job.pending == (checkpoint,)


def test_a_checkpoint_expires_when_it_is_as_old_as_the_timeout():
    job = coordinator(tolerable_failures=1)
    begun(job, 50)
    assert job.expire(1_049) == []
    assert job.expire(1_050) == [
        Aborted(1, FailureReason.CHECKPOINT_EXPIRED, 1_050, "the time-out is 1000 ms"),
        CancelUpload(1),
        DiscardCheckpoint(1, {}),
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
    verdicts = [fails_the_job(job.fail(begun(job), reason, 0)) for _ in range(6)]
    assert verdicts == [False, False, True, False, False, True]


@pytest.mark.parametrize("reason", [one for one in FailureReason if one not in COUNTED])
def test_other_reasons_are_not_counted(reason):
    job = coordinator()
    job.fail(begun(job), reason, 0)
    assert job.consecutive_failures == 0


def test_a_failure_is_counted_once_however_often_it_is_reported():
    job = coordinator(tolerable_failures=5)
    checkpoint = begun(job)
    job.decline(checkpoint, A, "no", 0)
    assert job.decline(checkpoint, B, "no", 0) == []
    assert job.fail(checkpoint, FailureReason.IO_EXCEPTION, 0) == []
    assert job.expire(5_000) == []
    assert job.consecutive_failures == 1


def test_a_success_starts_the_count_over():
    job = coordinator(tolerable_failures=1)
    job.fail(begun(job), FailureReason.IO_EXCEPTION, 0)
    completed(job)
    assert job.consecutive_failures == 0
    assert not fails_the_job(job.fail(begun(job), FailureReason.IO_EXCEPTION, 0))


def test_a_failure_older_than_the_last_success_is_not_counted():
    job = coordinator()
    older = begun(job)
    completed(job, kind=SAVEPOINT)
    assert Aborted(older, FailureReason.IO_EXCEPTION, 0) in (
        instructions := job.fail(older, FailureReason.IO_EXCEPTION, 0)
    )
    assert not fails_the_job(instructions)
    assert job.consecutive_failures == 0


def test_an_older_success_does_not_start_the_count_over():
    job = coordinator(tolerable_failures=3)
    savepoint = finalizing(job, kind=SAVEPOINT)
    completed(job)
    job.fail(begun(job), FailureReason.IO_EXCEPTION, 0)
    job.stored(savepoint, 0)
    assert job.consecutive_failures == 1


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_a_failed_local_snapshot_always_fails_the_job(kind):
    job = coordinator(tolerable_failures=100)
    instructions = job.fail(
        begun(job, 100, kind), FailureReason.SYNCHRONOUS_FAILURE, 100, "no space"
    )
    assert isinstance(instructions[-1], FailJob)
    assert "no space" in instructions[-1].reason


def test_failed_savepoints_are_not_counted():
    job = coordinator()
    instructions = job.fail(begun(job, kind=SAVEPOINT), FailureReason.IO_EXCEPTION, 0)
    assert not fails_the_job(instructions)
    assert job.consecutive_failures == 0


def test_the_verdict_names_checkpoint_cause_and_option():
    job = coordinator()
    last = job.decline(begun(job), B, "disk full", 0)[-1]
    assert isinstance(last, FailJob)
    for part in ("checkpoint 1", "count, subtask 1: disk full", "tolerable-failed-checkpoints"):
        assert part in last.reason


def test_aborting_all_is_no_failure_and_spares_what_is_complete():
    job = coordinator()
    first = completed(job)
    begun(job)
    begun(job, kind=SAVEPOINT)
    instructions = job.abort_all(7, FailureReason.JOB_RESTARTING)
    assert [one.id for one in instructions if isinstance(one, Aborted)] == [2, 3]
    assert [one.id for one in instructions if isinstance(one, DiscardCheckpoint)] == [2, 3]
    assert (job.pending, job.retained, job.consecutive_failures) == ((), (first,), 0)


# Storing


def test_failing_to_store_counts_and_discards():
    job = coordinator(tolerable_failures=1)
    checkpoint = finalizing(job)
    assert job.store_failed(checkpoint, 3, "access denied") == [
        Aborted(1, FailureReason.FINALIZE_CHECKPOINT_FAILURE, 3, "access denied"),
        CancelUpload(1),
        DiscardCheckpoint(1, {A: "a", B: "b"}),
    ]
    assert job.consecutive_failures == 1
    assert fails_the_job(job.store_failed(finalizing(job), 4, "access denied"))


def test_a_completion_subsumes_older_checkpoints_and_no_savepoints():
    job = coordinator()
    older, savepoint, newer, newest = begun(job), begun(job, kind=SAVEPOINT), begun(job), 4
    assert finalizing(job) == newest
    job.acknowledge(newer, A, 0, "a")
    assert job.stored(newest, 5) == [
        Completed(newest, 5),
        Aborted(older, FailureReason.SUBSUMED, 5),
        CancelUpload(older),
        DiscardCheckpoint(older, {}),
        Aborted(newer, FailureReason.SUBSUMED, 5),
        CancelUpload(newer),
        DiscardCheckpoint(newer, {A: "a"}),
    ]
    assert job.pending == (savepoint,)
    assert job.consecutive_failures == 0


def test_a_completion_leaves_newer_checkpoints_alone():
    job = coordinator()
    older, newer = finalizing(job), begun(job)
    assert job.stored(older, 0) == [Completed(older, 0)]
    assert job.pending == (newer,)


def test_a_savepoint_subsumes_nothing_and_is_not_retained():
    job = coordinator()
    first, pending = completed(job), begun(job)
    savepoint = completed(job, kind=SAVEPOINT)
    assert savepoint > pending
    assert (job.pending, job.retained) == ((pending,), (first,))


@pytest.mark.parametrize("written", [True, False])
def test_one_overtaken_while_its_metadata_is_written_is_discarded_when_that_has_ended(written):
    job = coordinator()
    older, newer = finalizing(job), finalizing(job)
    assert job.stored(newer, 1) == [
        Completed(newer, 1),
        Aborted(older, FailureReason.SUBSUMED, 1),
        CancelUpload(older),
    ]
    assert job.in_doubt == (older,)
    discarded: list[Instruction] = [DiscardCheckpoint(older, {A: "a", B: "b"})]
    answer = job.stored(older, 2) if written else job.store_failed(older, 2, "gone")
    assert answer == discarded
    assert not job.in_doubt
    assert (job.retained, job.consecutive_failures) == ((newer,), 0)
    assert job.stored(older, 3) == []


def test_one_that_expires_while_its_metadata_is_written_never_completes():
    job = coordinator(tolerable_failures=1)
    checkpoint = finalizing(job)
    expired = job.expire(1_000)
    assert [type(one) for one in expired] == [Aborted, CancelUpload]
    assert job.stored(checkpoint, 1_001) == [DiscardCheckpoint(checkpoint, {A: "a", B: "b"})]
    assert job.retained == ()
    assert job.consecutive_failures == 1


def test_storing_twice_changes_nothing():
    job = coordinator()
    checkpoint = completed(job)
    assert job.stored(checkpoint, 1) == []
    assert job.store_failed(checkpoint, 1, "late") == []
    assert job.retained == (checkpoint,)


@pytest.mark.parametrize("answer", ["stored", "store_failed"])
def test_metadata_written_too_early_is_refused(answer):
    job = coordinator()
    checkpoint = begun(job)
    job.acknowledge(checkpoint, A, 0, "a")
    with pytest.raises(JobExecutionError, match=r"checkpoint 1 .* 1 of 2 participants"):
        job.stored(checkpoint, 0) if answer == "stored" else job.store_failed(checkpoint, 0, "")


def test_the_newest_are_retained_and_the_others_retired():
    job = coordinator(num_retained=2)
    completed(job)
    completed(job)
    assert job.stored(finalizing(job), 0) == [Completed(3, 0), Retire(1)]
    assert job.retained == (2, 3)


def test_checkpoints_from_before_a_restore_are_retired_in_their_turn():
    job = coordinator(num_retained=2, next_id=9, completed=(8, 3, 5))
    assert job.retained == (3, 5, 8)
    assert job.stored(finalizing(job), 0) == [Completed(9, 0), Retire(3), Retire(5)]


# What is refused


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("interval_ms", 9),
        ("min_pause_ms", -1),
        ("timeout_ms", 9),
        ("max_concurrent", 0),
        ("tolerable_failures", -1),
        ("num_retained", 0),
        ("num_retained", True),
        ("timeout_ms", 10.5),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(rule, value):
    with pytest.raises(ConfigurationError, match=rule):
        coordinator(**{rule: value})


@pytest.mark.parametrize(("next_id", "past"), [(0, ()), (5, (5,)), (4, (2, 7))])
def test_an_id_used_before_is_refused(next_id, past):
    with pytest.raises(ConfigurationError, match="next_id"):
        coordinator(next_id=next_id, completed=past)
