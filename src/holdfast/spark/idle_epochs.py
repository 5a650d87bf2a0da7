"""Epochs without new input: for checkpoints, for timers and for channel state.

All of them run under the lock of the job attempt, between two batches of the query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.service import CheckpointService
    from holdfast.job.model import EpochOrder
    from holdfast.spark.epoch_runner import EpochRunner

QUIET = 0.25
"""Seconds without an epoch before one runs for event-time timers alone: an epoch with data
would fire them too."""
WAITING = ("Waiting for data to arrive", "Waiting for next trigger")
"""Messages of a query that has looked for input, and does not look just now."""


class IdleEpochs:
    """Decides which epochs run without input, and runs them."""

    def __init__(
        self,
        runner: EpochRunner,
        checkpoints: CheckpointService,
        run: Callable[[EpochOrder, int], None],
        is_ending: Callable[[], bool],
    ) -> None:
        """Nothing has run yet.

        Args:
            runner: Runs the epochs of the job attempt.
            checkpoints: Gives the order of every epoch.
            run: Runs an epoch without input, after a batch of the query.
            is_ending: Whether no other epoch may run.
        """
        self._runner = runner
        self._checkpoints = checkpoints
        self._run = run
        self._is_ending = is_ending
        self.last_batch: int | None = None
        """The last batch that was processed; None before the first."""
        self.last_end = monotonic()
        """When the last epoch ended, with input or without."""
        self.resumed = True
        """Whether all is done that the restored epoch has left to do."""
        self.has_looked = False
        """Whether the query has read input, or looked for it and found none."""

    def run(self, order: EpochOrder | None, **changes: Any) -> None:
        """Run an epoch, with changes to its order."""
        assert order is not None
        batch_id = -1 if self.last_batch is None else self.last_batch
        self._run(replace(order, **changes), batch_id)

    def run_what_is_due(self, query_status: Callable[[], dict[str, Any]]) -> None:
        """Run what is due while no data comes."""
        self.resume()
        self.run_for_checkpoint()
        self.drain()
        self._note_silence(query_status)
        # Others may have become idle, or ended.
        self._runner.align()
        # After a recovery, the rows that followed before come first.
        quiet = self.has_looked and monotonic() - self.last_end >= QUIET
        self.run_timers(event_time=quiet)

    def resume(self) -> None:
        """Do what followed the restored epoch before its failure, once and before any batch.

        Epochs that may be cut are followed by one that processes their channel state, and by one
        for their timers.
        """
        if self.resumed:
            return
        self.resumed = True
        cut = bool(self._runner.channel_rows) or self._checkpoints.unaligned
        self.drain()
        if cut:
            # The first only finds out which timers there are.
            self.run_timers(event_time=False)
            self.run_timers(event_time=True)

    def _note_silence(self, query_status: Callable[[], dict[str, Any]]) -> None:
        """Note whether the query has looked for input since the last batch, and found none."""
        if self.has_looked and not self._runner.can_be_idle:
            return
        status = query_status()
        if status.get("isDataAvailable") is not False or status.get("message") not in WAITING:
            return
        self._runner.found_nothing()
        if not self.has_looked:
            self.has_looked = True
            self.last_end = monotonic()

    def drain(self) -> None:
        """Run epochs until all channel state is processed."""
        while self._runner.channel_rows and not self._is_ending():
            assert self.last_batch is not None
            self.run(self._checkpoints.next_epoch(idle=False))
            self.run_for_checkpoint()

    def run_timers(self, *, event_time: bool) -> None:
        """Run an epoch for timers that are due, if there are any.

        Watermarks advance in it only if timers wait for them: otherwise rows that come next could
        be late which are not without it.

        Args:
            event_time: Include timers in event time, besides those in processing time.
        """
        if self.last_batch is None or self._is_ending():
            return
        has_due = self._runner.has_timers_due
        advances = event_time and has_due(event_time=True)
        if advances or has_due(event_time=False):
            order = self._checkpoints.next_epoch(idle=False)
            self.run(order, cut_at=None, keeps_watermarks=not advances)

    def run_for_checkpoint(self, *, last: bool = False) -> bool:
        """Run an epoch for a checkpoint alone, if one is needed; whether it ran."""
        if self._is_ending() or self.last_batch is None:
            return False
        order = self._checkpoints.next_epoch(idle=True, last=last)
        if order is None:
            return False
        self.run(order)
        return True

    def drain_event_time(self) -> None:
        """Fire all event-time timers, although more input could come."""
        if self.last_batch is None or not self._runner.has_pending_timers:
            return
        # Without a checkpoint: if the savepoint fails, nothing that fires here may be kept.
        order = self._checkpoints.next_epoch(idle=False, plain=True)
        self.run(order, cut_at=None, drains=True)

    def end_time(self) -> None:
        """Fire all timers, since the sources have ended for good."""
        if self.last_batch is None or self._is_ending() or not self._runner.has_pending_timers:
            return
        self.run(self._checkpoints.next_epoch(idle=False), cut_at=None, last=True)
