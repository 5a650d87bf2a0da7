"""Decides which timers are due, and how time advances in the next epoch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.job.watermarks import Watermarks, held_back
from holdfast.runtime.plan import EpochTime

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.job.model import EpochOrder, JobPlan
    from holdfast.job.watermarks import EventTimes
    from holdfast.runtime.report import TaskReport

logger = logging.getLogger("holdfast")

Store = tuple[str, int]
"""Uid and subtask."""


class TimerSchedule:
    """Watermarks and next timers of one job attempt."""

    def __init__(
        self,
        plan: JobPlan,
        restored: Iterable[Store],
        event_times: EventTimes | None = None,
    ) -> None:
        """Create the schedule of a job attempt before its first epoch.

        Args:
            plan: The compiled job.
            restored: Restored stores, which may have timers.
            event_times: How far event time had advanced in the restored checkpoint.
        """
        self._watermarks = Watermarks(plan.time, event_times)
        operators = plan.operators
        self._unknown = {
            (uid, subtask)
            for uid, subtask in restored
            if uid in operators and operators[uid].has_timers
        }
        """Stores whose timers are unknown until an epoch has read them."""
        self._event: dict[Store, int] = {}
        self._processing: dict[Store, int] = {}
        self._targets: dict[str, int] = {}
        self._held = False
        """Whether the running epoch does not advance watermarks, since it may be cut."""

    @property
    def has_pending_timers(self) -> bool:
        """Whether any timer is or may be pending."""
        return bool(self._unknown or self._event or self._processing)

    @property
    def can_be_idle(self) -> bool:
        """Whether any source becomes idle when it is silent."""
        return self._watermarks.can_be_idle

    def of_epoch(self, order: EpochOrder, now: int, *, channel_state: bool = False) -> EpochTime:
        """How time advances in the next epoch.

        Args:
            order: The order for the epoch.
            now: Milliseconds since 1970.
            channel_state: Whether the epoch begins with channel state, which may be older than
                the rows that were seen, so that nothing may overtake it.
        """
        self._held = order.cut_at is not None
        if order.last or order.drains:
            self._targets = self._watermarks.at_the_end()
        elif self._held or order.keeps_watermarks:
            # What is held may be older than the rows it processes: nothing may overtake it.
            self._targets = {}
        else:
            self._targets = self._watermarks.possible()
        current = self._watermarks.current
        uids = self._watermarks.operators
        return EpochTime(
            watermarks={uid: (current(uid), self._targets.get(uid, current(uid))) for uid in uids},
            due=frozenset(self._due(self._targets, now, everything=order.last)),
            last=order.last,
            early=not (order.last or order.drains or self._held or channel_state),
        )

    def is_due(self, now: int) -> bool:
        """Whether an epoch without input fires timers, or may, although no watermark advances.

        Args:
            now: Milliseconds since 1970.
        """
        return any(True for _ in self._due({}, now))

    def is_event_time_due(self) -> bool:
        """Whether timers wait for watermarks that an epoch without input can advance."""
        return any(True for _ in self._due_by(self._watermarks.possible()))

    def found_nothing(self, at: int, ago_ms: int = 0) -> None:
        """Note that no source had rows.

        Args:
            at: When they were looked for, on a monotonic clock.
            ago_ms: How long before that it may have been.
        """
        self._watermarks.looked(at, ago_ms=ago_ms)

    def pause_ahead(self, ended: Collection[str]) -> frozenset[str]:
        """Uids of the sources that must wait for others of their alignment group.

        Args:
            ended: Uids of the sources that have nothing more to read.
        """
        return self._watermarks.pause_ahead(ended)

    def awaited(self, ended: Collection[str]) -> dict[str, int]:
        """Watermarks of the sources that others wait for, by uid."""
        return self._watermarks.awaited(ended)

    def ended(
        self,
        reports: Iterable[TaskReport],
        *,
        read_at: int | None = None,
        channel_state: bool = False,
    ) -> None:
        """Update the schedule after an epoch.

        Args:
            reports: The reports of its tasks.
            read_at: When its input was read, on a monotonic clock; None without input.
            channel_state: Whether it has left channel state.
        """
        self._watermarks.advanced(self._targets)
        self._targets = {}
        latest: dict[str, int] = {}
        emitted: dict[str, int] = {}
        for report in reports:
            for found, reported in ((latest, report.latest), (emitted, report.emitted)):
                for uid, time in reported.items():
                    found[uid] = max(time, found.get(uid, time))
            for uid, store in report.stores.items():
                where = (uid, report.subtask)
                self._unknown.discard(where)
                _note(self._event, where, store.next_event_timer)
                _note(self._processing, where, store.next_processing_timer)
        self._watermarks.saw(latest, read_at, emitted)
        if self._held and not channel_state and not self.is_event_time_due():
            # No timer waits, so no epoch is needed to catch up.
            self._watermarks.advanced(self._watermarks.possible())

    def event_times(self) -> EventTimes:
        """How far event time has advanced, for a checkpoint."""
        return self._watermarks.event_times()

    def watermarks(self) -> dict[str, int]:
        """Watermarks of operators and time sources, by uid."""
        current = {uid: self._watermarks.current(uid) for uid in self._watermarks.operators}
        return {**current, **self._watermarks.sources()}

    def _due(
        self, targets: dict[str, int], now: int, *, everything: bool = False
    ) -> Iterable[Store]:
        yield from self._unknown
        yield from self._event if everything else self._due_by(targets)
        for where, time in self._processing.items():
            if everything or time <= now:
                yield where

    def _due_by(self, watermarks: dict[str, int]) -> Iterable[Store]:
        for where, time in self._event.items():
            if time <= watermarks.get(where[0], time - 1):
                yield where


def _note(times: dict[Store, int], where: Store, time: int | None) -> None:
    if time is None:
        times.pop(where, None)
    else:
        times[where] = time


def warn_of_held_time(job: str, plan: JobPlan) -> None:
    """Warn of operators with timers whose watermark never advances."""
    known = plan.operators
    operators = [known[uid] for uid in held_back(plan.time) if uid in known]
    held = [operator.name for operator in operators if operator.has_timers]
    if held:
        logger.warning(
            "job %r: the watermark of %s stays where it is until the job ends, since one of "
            "its inputs has watermarks and another has none; call "
            "assign_timestamps_and_watermarks on that one too",
            job,
            ", ".join(map(repr, held)),
        )
