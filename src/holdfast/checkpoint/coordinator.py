"""The checkpoint coordinator: a state machine without I/O.

Events are method calls, which return a list of instructions. Times are in milliseconds on a
monotonic clock. The states of a checkpoint:

    trigger ──► collecting ──all acknowledged──► finalizing ──stored──► completed
                    │                                │                      │
                    └────── failed, expired, subsumed ──► aborted           └─► retired

The coordinator is not thread-safe; its owner holds a lock.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from holdfast.errors import ConfigurationError, JobExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.config.checkpointing import CheckpointSettings


@dataclass(slots=True)
class Acknowledgements:
    """The participants of a pending checkpoint that have acknowledged it."""

    id: int
    kind: CheckpointKind
    triggered_at: int
    participants: frozenset[Participant]
    acknowledged: set[Participant] = field(default_factory=set)

    @property
    def finalizing(self) -> bool:
        """Whether all have acknowledged, so that the metadata is being written."""
        return len(self.acknowledged) == len(self.participants)

    def awaits(self, participant: Participant) -> bool:
        """Whether the participant has to acknowledge, and has not."""
        return participant in self.participants and participant not in self.acknowledged


class Coordinator:
    """Decides when the checkpoints of one job begin, complete, fail and are deleted.

    Ids increase and are never used twice. Every `Finalize` must be answered by `stored` or
    `store_failed`.

    Args:
        settings: The rules that checkpoints follow.
        now: The time at which the first interval begins.
        next_id: The id of the first checkpoint; above all ids used before.
        completed: Ids of checkpoints that are complete already. If they are more than
            `num_retained`, the next completion retires the surplus.

    Raises:
        ConfigurationError: If `next_id` is below 1 or not above every completed id.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        *,
        now: int,
        next_id: int = 1,
        completed: Iterable[int] = (),
    ) -> None:
        self._settings = settings
        self._retained = sorted(set(completed))
        newest = max(self._retained, default=0)
        if next_id <= newest:
            raise ConfigurationError(
                f"next_id is {next_id}; it must be at least {newest + 1}, since no id is used twice"
            )
        self._next_id = next_id
        self._failures = 0
        """Consecutive failures since the last success, or since they last failed the job."""
        self._last_success = newest
        self._last_trigger = now
        self._last_completion: int | None = None
        self._pending: dict[int, Acknowledgements] = {}
        self._in_doubt: list[int] = []
        """Aborted while their metadata was written; discarded when the write has ended."""

    @property
    def pending(self) -> tuple[int, ...]:
        """Ids of checkpoints that are neither completed nor aborted, oldest first."""
        return tuple(self._pending)

    @property
    def retained(self) -> tuple[int, ...]:
        """Ids of the completed checkpoints that are kept, oldest first, without savepoints."""
        return tuple(self._retained)

    @property
    def in_doubt(self) -> tuple[int, ...]:
        """Ids aborted while their metadata was written; never restore from them.

        They may look complete in storage until the answer to `Finalize` leads to a
        `DiscardCheckpoint`.
        """
        return tuple(self._in_doubt)

    @property
    def next_id(self) -> int:
        """The id of the next checkpoint."""
        return self._next_id

    @property
    def is_full(self) -> bool:
        """Whether no further periodic checkpoint may begin now."""
        kinds = {one.kind for one in self._pending.values()}
        too_many = len(self._pending) >= self._settings.max_concurrent
        return too_many or CheckpointKind.WITH_SAVEPOINT in kinds

    def resume_after(self, checkpoint_id: int) -> None:
        """Continue after the checkpoint that was restored, and retain it.

        It may be unknown here: a driver that was replaced can have completed it meanwhile.
        """
        self._next_id = max(self._next_id, checkpoint_id + 1)
        if checkpoint_id not in self._retained:
            insort(self._retained, checkpoint_id)

    def due(self, now: int) -> bool:
        """Whether a periodic checkpoint begins if it is triggered now."""
        return self.next_due(now) == now

    def next_due(self, now: int) -> int | None:
        """When the next periodic checkpoint may begin; `now` if it is overdue.

        None if there are no periodic checkpoints, or if a pending one has to end first.
        """
        interval = self._settings.interval_ms
        if interval is None or self.is_full:
            return None
        last = self._last_completion
        pause_ends = now if last is None else last + self._settings.min_pause_ms
        return max(now, self._last_trigger + interval, pause_ends)

    def trigger(
        self,
        now: int,
        participants: Iterable[Participant],
        *,
        kind: CheckpointKind = CheckpointKind.PERIODIC,
    ) -> int | None:
        """Begin a checkpoint and return its id; None for a periodic one that is not due.

        Args:
            now: The time of the trigger.
            participants: Who has to acknowledge; at least one.
            kind: Decides which rules apply.
        """
        if kind is CheckpointKind.PERIODIC:
            if not self.due(now):
                return None
            self._last_trigger = now
        pending = Acknowledgements(self._next_id, kind, now, frozenset(participants))
        self._next_id += 1
        self._pending[pending.id] = pending
        return pending.id

    def acknowledge(self, checkpoint_id: int, participant: Participant) -> list[Instruction]:
        """Record an acknowledgement; the last one finalizes the checkpoint.

        Late, repeated and unexpected acknowledgements have no effect.
        """
        pending = self._pending.get(checkpoint_id)
        if pending is None or not pending.awaits(participant):
            return []
        pending.acknowledged.add(participant)
        return [Finalize(checkpoint_id)] if pending.finalizing else []

    def fail(
        self, checkpoint_id: int, reason: FailureReason, detail: str = ""
    ) -> list[Instruction]:
        """Abort a checkpoint; no effect if it is not pending."""
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return []
        aborted = self._abort(pending, reason, detail)
        return [*aborted, *self._judge(pending, reason, detail)]

    def expire(self, now: int) -> list[Instruction]:
        """Abort the checkpoints that have reached the timeout; fails the job at most once."""
        timeout = self._settings.timeout_ms
        expired = [one for one in self._pending.values() if now - one.triggered_at >= timeout]
        detail = f"the timeout is {timeout} ms"
        instructions: list[Instruction] = []
        verdicts: list[Instruction] = []
        for one in expired:
            instructions += self._abort(one, FailureReason.CHECKPOINT_EXPIRED, detail)
            verdicts += self._judge(one, FailureReason.CHECKPOINT_EXPIRED, detail)
        return [*instructions, *verdicts[:1]]

    def stored(self, checkpoint_id: int, now: int) -> list[Instruction]:
        """Complete a checkpoint whose metadata is written; discard it if it was aborted.

        Raises:
            JobExecutionError: If participants have yet to acknowledge.
        """
        pending = self._written(checkpoint_id)
        if pending is None:
            return self._discard_in_doubt(checkpoint_id)
        del self._pending[checkpoint_id]
        self._last_completion = now
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._failures = 0
        done = Completed(checkpoint_id)
        if pending.kind is CheckpointKind.SAVEPOINT:
            return [done]
        self._retained.append(checkpoint_id)
        return [done, *self._subsume(checkpoint_id), *self._retire()]

    def store_failed(self, checkpoint_id: int, reason: str) -> list[Instruction]:
        """Abort a checkpoint whose metadata could not be written.

        Raises:
            JobExecutionError: If participants have yet to acknowledge.
        """
        pending = self._written(checkpoint_id)
        if pending is None:
            return self._discard_in_doubt(checkpoint_id)
        why = FailureReason.FINALIZE_CHECKPOINT_FAILURE
        return [
            *self._abort(pending, why, reason),
            *self._discard_in_doubt(checkpoint_id),
            *self._judge(pending, why, reason),
        ]

    def abort_all(self, reason: FailureReason) -> list[Instruction]:
        """Abort all pending checkpoints and savepoints; does not count as a failure."""
        instructions: list[Instruction] = []
        for pending in tuple(self._pending.values()):
            instructions += self._abort(pending, reason)
        return instructions

    def _written(self, checkpoint_id: int) -> Acknowledgements | None:
        pending = self._pending.get(checkpoint_id)
        if pending is not None and not pending.finalizing:
            missing = len(pending.participants) - len(pending.acknowledged)
            raise JobExecutionError(
                f"the metadata of checkpoint {checkpoint_id} was written before {missing} of "
                f"{len(pending.participants)} participants had acknowledged; it must be written "
                "only after the instruction Finalize"
            )
        return pending

    def _abort(
        self, pending: Acknowledgements, reason: FailureReason, detail: str = ""
    ) -> list[Instruction]:
        del self._pending[pending.id]
        aborted = Aborted(pending.id, reason, detail)
        if pending.finalizing:
            # Do not delete it yet: the running write could still create `_metadata`, and the
            # checkpoint would look complete without its files.
            self._in_doubt.append(pending.id)
            return [aborted]
        return [aborted, DiscardCheckpoint(pending.id)]

    def _discard_in_doubt(self, checkpoint_id: int) -> list[Instruction]:
        if checkpoint_id not in self._in_doubt:
            return []
        self._in_doubt.remove(checkpoint_id)
        return [DiscardCheckpoint(checkpoint_id)]

    def _judge(
        self, pending: Acknowledgements, reason: FailureReason, detail: str
    ) -> list[Instruction]:
        """Fail the job if there are more consecutive failures than tolerated.

        Savepoints and checkpoints older than the last success are not counted.
        """
        savepoint = pending.kind in (CheckpointKind.SAVEPOINT, CheckpointKind.WITH_SAVEPOINT)
        if savepoint or not reason.counted or pending.id <= self._last_success:
            return []
        self._failures += 1
        tolerable = self._settings.tolerable_failures
        if self._failures <= tolerable:
            return []
        # The job restarts now, with its full tolerance.
        self._failures = 0
        what = f"{reason.value} ({detail})" if detail else reason.value
        return [
            FailJob(
                f"checkpoint {pending.id} failed: {what}; that is one consecutive failure more "
                f"than the {tolerable} tolerated. Remove the cause, or raise "
                "execution.checkpointing.tolerable-failed-checkpoints"
            )
        ]

    def _subsume(self, checkpoint_id: int) -> list[Instruction]:
        instructions: list[Instruction] = []
        for pending in tuple(self._pending.values()):
            if pending.id < checkpoint_id and pending.kind is not CheckpointKind.SAVEPOINT:
                instructions += self._abort(pending, FailureReason.SUBSUMED)
        return instructions

    def _retire(self) -> list[Instruction]:
        surplus = self._retained[: -self._settings.num_retained]
        del self._retained[: len(surplus)]
        return [Retire(one) for one in surplus]
