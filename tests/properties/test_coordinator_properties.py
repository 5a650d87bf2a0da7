"""Any order of events leaves the coordinator's promises standing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
from holdfast.config.checkpointing import CheckpointSettings, savepoint_settings
from holdfast.config.configuration import Configuration
from tests.support.properties import searched

if TYPE_CHECKING:
    from collections.abc import Collection

PARTICIPANTS: list[Participant] = [("count", 0), ("count", 1), (2, 0)]
SAVEPOINT = CheckpointKind.SAVEPOINT
WITH_SAVEPOINT = CheckpointKind.WITH_SAVEPOINT
START = 1_000
# Spelled out, so that the test does not ask the code under test what counts.
COUNTED = {
    "CHECKPOINT_ASYNC_EXCEPTION",
    "CHECKPOINT_EXPIRED",
    "FINALIZE_CHECKPOINT_FAILURE",
}
SETTINGS = st.builds(
    partial(replace, savepoint_settings(Configuration())),
    interval_ms=st.none() | st.sampled_from([10, 30]),
    min_pause_ms=st.sampled_from([0, 25]),
    timeout_ms=st.sampled_from([30, 500]),
    max_concurrent=st.integers(1, 3),
    tolerable_failures=st.integers(0, 2),
    num_retained=st.integers(1, 3),
)
# Which checkpoint an event is about: one in flight, or anything from never issued to long gone.
AIMS = st.tuples(st.sampled_from(["pending", "pending", "any"]), st.integers(-1, 6))
Aim = tuple[str, int]


@dataclass
class Record:
    """What the instructions have said of one checkpoint."""

    kind: CheckpointKind
    triggered_at: int
    participants: frozenset[Participant]
    acknowledged: set[Participant] = field(default_factory=set)
    finalized: bool = False
    answered: bool = False
    outcome: Completed | Aborted | None = None
    completed_at: int | None = None
    discarded: int = 0
    retired: int = 0

    @property
    def being_written(self) -> bool:
        return self.finalized and not self.answered


class CoordinatorMachine(RuleBasedStateMachine):
    """Drives a coordinator at random and keeps the plainest possible books."""

    @initialize(rules=SETTINGS, past=st.sets(st.integers(1, 9), max_size=3))
    def start(self, rules: CheckpointSettings, past: set[int]) -> None:
        self.given = rules
        self.now = START
        self.records: dict[int, Record] = {}
        self.past = sorted(past)[-rules.num_retained :]
        self.next_id = max(self.past, default=0) + 1
        self.completions = list(self.past)
        self.log: list[tuple[str, int]] = []
        self.job = Coordinator(
            rules, now=self.now, next_id=self.next_id, completed=reversed(self.past)
        )

    # Events

    @rule(by=st.sampled_from([1, 9, 10, 15, 30]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(
        kind=st.sampled_from(CheckpointKind),
        who=st.sets(st.sampled_from(PARTICIPANTS), min_size=1),
    )
    def trigger(self, kind: CheckpointKind, who: set[Participant]) -> None:
        due = self.job.due(self.now)
        checkpoint = self.job.trigger(self.now, who, kind=kind)
        if checkpoint is None:
            assert kind is CheckpointKind.PERIODIC
            assert not due
            return
        assert due or kind is not CheckpointKind.PERIODIC
        assert checkpoint == self.next_id
        self.records[checkpoint] = Record(kind, self.now, frozenset(who))
        self.next_id += 1

    @rule(aim=AIMS, who=st.sampled_from(PARTICIPANTS))
    def acknowledge(self, aim: Aim, who: Participant) -> None:
        self.hand_in(self.chosen(aim), who)

    @precondition(lambda self: self.collecting())
    @rule(data=st.data())
    def all_acknowledge(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(self.collecting()))
        for who in sorted(self.records[checkpoint].participants, key=str):
            self.hand_in(checkpoint, who)

    @rule(aim=AIMS, reason=st.sampled_from(FailureReason))
    def fail(self, aim: Aim, reason: FailureReason) -> None:
        checkpoint = self.chosen(aim)
        aborting = {checkpoint} & self.unended()
        self.observe(self.job.fail(checkpoint, reason), aborting=aborting)

    @rule()
    def expire(self) -> None:
        born = {one: self.records[one].triggered_at for one in self.unended()}
        aborting = {one for one, at in born.items() if at + self.given.timeout_ms <= self.now}
        self.observe(self.job.expire(self.now), aborting=aborting)

    @precondition(lambda self: self.unended())
    @rule()
    def one_reaches_its_timeout(self) -> None:
        oldest = min(self.records[one].triggered_at for one in self.unended())
        self.now = max(self.now, oldest + self.given.timeout_ms)
        self.expire()

    @precondition(lambda self: self.being_written())
    @rule(data=st.data(), written=st.sampled_from([True, True, False]))
    def answer(self, data: st.DataObject, written: bool) -> None:
        self.settle(data.draw(st.sampled_from(self.being_written())), written)

    @rule(aim=AIMS, written=st.booleans())
    def answer_again(self, aim: Aim, written: bool) -> None:
        checkpoint = self.chosen(aim)
        record = self.records.get(checkpoint)
        if record is None or record.answered:
            assert self.told(checkpoint, written) == []

    @rule(kind=st.sampled_from([CheckpointKind.FORCED, SAVEPOINT]))
    def one_runs_through(self, kind: CheckpointKind) -> None:
        checkpoint = self.next_id
        self.trigger(kind, {PARTICIPANTS[0]})
        self.hand_in(checkpoint, PARTICIPANTS[0])
        self.settle(checkpoint, written=True)

    @precondition(lambda self: len(self.unended()) > 2)
    @rule()
    def abort_all(self) -> None:
        instructions = self.job.abort_all(FailureReason.JOB_STOPPED)
        self.observe(instructions, aborting=self.unended(), counting=False)

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        self.abort_all()
        for checkpoint in self.being_written():
            self.settle(checkpoint, written=True)
        assert self.job.pending == ()
        for record in self.records.values():
            assert record.discarded == isinstance(record.outcome, Aborted)
        assert self.job.in_doubt == ()

    # Books

    def told(self, checkpoint: int, written: bool) -> list[Instruction]:
        if written:
            return self.job.stored(checkpoint, self.now)
        return self.job.store_failed(checkpoint, "refused")

    def settle(self, checkpoint: int, written: bool) -> None:
        record = self.records[checkpoint]
        record.answered = True
        aborting: set[int] = set()
        if record.outcome is None and not written:
            aborting = {checkpoint}
        elif record.outcome is None and record.kind is not SAVEPOINT:
            older = {one for one in self.unended() if one < checkpoint}
            aborting = {one for one in older if self.records[one].kind is not SAVEPOINT}
        self.observe(self.told(checkpoint, written), aborting=aborting)

    def hand_in(self, checkpoint: int, who: Participant) -> None:
        if self.awaits(checkpoint, who):
            self.records[checkpoint].acknowledged.add(who)
        self.observe(self.job.acknowledge(checkpoint, who))

    def chosen(self, aim: Aim) -> int:
        where, age = aim
        unended = sorted(self.unended())
        if where == "pending" and unended:
            return unended[age % len(unended)]
        return self.next_id - 1 - age

    def awaits(self, checkpoint: int, who: Participant) -> bool:
        if checkpoint not in self.unended():
            return False
        record = self.records[checkpoint]
        return who in record.participants and who not in record.acknowledged

    def unended(self) -> set[int]:
        return {one for one, record in self.records.items() if record.outcome is None}

    def collecting(self) -> list[int]:
        return sorted(one for one in self.unended() if not self.records[one].finalized)

    def being_written(self) -> list[int]:
        return [one for one, record in self.records.items() if record.being_written]

    def observe(
        self,
        instructions: list[Instruction],
        *,
        aborting: Collection[int] = (),
        counting: bool = True,
    ) -> None:
        aborted = [one.id for one in instructions if isinstance(one, Aborted)]
        assert aborted == sorted(aborting)
        verdicts = self.recount()[1]
        for instruction in instructions:
            self.note(instruction, counting)
        failing = [one for one in instructions if isinstance(one, FailJob)]
        assert len(failing) == (self.recount()[1] > verdicts)

    def note(self, instruction: Instruction, counting: bool) -> None:
        match instruction:
            case Finalize(checkpoint):
                record = self.records[checkpoint]
                assert not record.finalized
                assert record.acknowledged == record.participants
                record.finalized = True
            case Completed(checkpoint):
                self.end(checkpoint, instruction)
                self.log.append(("success", checkpoint))
            case Aborted(checkpoint, reason):
                self.end(checkpoint, instruction)
                savepoint = self.records[checkpoint].kind in (SAVEPOINT, WITH_SAVEPOINT)
                if counting and not savepoint and reason.name in COUNTED:
                    self.log.append(("failure", checkpoint))
            case DiscardCheckpoint(checkpoint):
                record = self.records[checkpoint]
                assert isinstance(record.outcome, Aborted)
                assert not record.being_written
                record.discarded += 1
            case Retire(checkpoint):
                assert checkpoint in self.completions
                assert checkpoint not in self.job.retained
                record = self.records.setdefault(
                    checkpoint, Record(CheckpointKind.PERIODIC, 0, frozenset(), answered=True)
                )
                record.outcome = record.outcome or Completed(checkpoint)
                record.retired += 1

    def end(self, checkpoint: int, outcome: Completed | Aborted) -> None:
        record = self.records[checkpoint]
        assert record.outcome is None
        record.outcome = outcome
        if isinstance(outcome, Aborted):
            return
        record.completed_at = self.now
        assert record.finalized
        if record.kind is not SAVEPOINT:
            assert checkpoint > max(self.completions, default=0)
            self.completions.append(checkpoint)

    def recount(self) -> tuple[int, int]:
        """Failures in a row, and how often they were too many, from the log alone."""
        newest, row, verdicts = max(self.past, default=0), 0, 0
        for event, checkpoint in self.log:
            if checkpoint <= newest:
                continue
            if event == "success":
                newest, row = checkpoint, 0
            elif row == self.given.tolerable_failures:
                row, verdicts = 0, verdicts + 1
            else:
                row += 1
        return row, verdicts

    # Promises

    @invariant()
    def every_checkpoint_is_pending_or_has_ended(self) -> None:
        assert list(self.job.pending) == sorted(self.unended())
        assert self.job.next_id == self.next_id

    @invariant()
    def nothing_older_than_the_newest_completed_is_pending(self) -> None:
        newest = max(self.completions, default=0)
        kinds = {one: self.records[one].kind for one in self.job.pending}
        assert all(one > newest or kind is SAVEPOINT for one, kind in kinds.items())

    @invariant()
    def the_newest_completed_are_retained_and_all_others_retired_once(self) -> None:
        kept = self.completions[-self.given.num_retained :]
        assert list(self.job.retained) == kept
        for one in self.completions:
            record = self.records.get(one)
            assert (record.retired if record else 0) == (one not in kept)

    @invariant()
    def what_was_aborted_is_discarded_once_and_nothing_else_is(self) -> None:
        for one, record in self.records.items():
            aborted = isinstance(record.outcome, Aborted)
            assert record.discarded == (aborted and not record.being_written)
            assert (one in self.job.in_doubt) == (aborted and record.being_written)

    @invariant()
    def no_more_periodic_ones_are_in_flight_than_allowed(self) -> None:
        kinds = [self.records[one].kind for one in self.job.pending]
        assert kinds.count(CheckpointKind.PERIODIC) <= self.given.max_concurrent

    @invariant()
    def the_next_periodic_one_is_due_by_interval_pause_and_number(self) -> None:
        begun = [it for it in self.records.values() if it.kind is CheckpointKind.PERIODIC]
        started = max([START, *(it.triggered_at for it in begun)])
        ended = [it.completed_at for it in self.records.values() if it.completed_at is not None]
        rules = self.given
        due_at = None
        pending = {self.records[one].kind for one in self.job.pending}
        room = len(self.unended()) < rules.max_concurrent and WITH_SAVEPOINT not in pending
        if rules.interval_ms is not None and room:
            pauses = [at + rules.min_pause_ms for at in ended]
            due_at = max([self.now, started + rules.interval_ms, *pauses])
        assert self.job.next_due(self.now) == due_at
        assert self.job.due(self.now) == (due_at == self.now)


@searched(80, 400)
def test_whatever_happens_the_coordinator_keeps_its_promises(examples: int) -> None:
    limits = settings(max_examples=examples, stateful_step_count=40)
    run_state_machine_as_test(CoordinatorMachine, settings=limits)
