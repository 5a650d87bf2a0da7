"""Notifies listeners on the driver of every epoch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import JobExecutionError
from holdfast.job.threads import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.job.statistics import EpochStatistics
    from holdfast.job.threads import TimeLimits

    Listener = Callable[[EpochStatistics], None]


class EpochListeners:
    """The epoch listeners of one job; the next epoch waits for them, with a time limit."""

    def __init__(self, listeners: Iterable[Listener], time_limits: TimeLimits) -> None:
        """Notify `listeners`, one after the other."""
        self._listeners = tuple(listeners)
        self._time_limits = time_limits

    def tell(self, epoch: EpochStatistics) -> None:
        """Notify all listeners of a completed epoch.

        Raises:
            JobExecutionError: A listener raised or hangs.
        """
        for listener in self._listeners:
            name = getattr(listener, "__qualname__", type(listener).__qualname__)
            try:
                self._time_limits.call(f"epoch listener {name}", partial(_tell, listener, epoch))
            except NoAnswerError as error:
                raise JobExecutionError(
                    f"the epoch listener {name} hangs after epoch {epoch.epoch}: {error}; find out "
                    f"what it waits for, or set {COMMITTER_TIMEOUT.key} higher"
                ) from error
            except Exception as error:
                raise JobExecutionError(
                    f"an epoch listener raised after epoch {epoch.epoch}: "
                    f"{type(error).__name__}: {error}"
                ) from error


def _tell(listener: Listener, epoch: EpochStatistics, wanted: Callable[[], bool]) -> None:
    listener(epoch)
