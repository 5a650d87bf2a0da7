"""Notifies listeners of completed and aborted checkpoints.

Listeners on the driver are called at once. Functions hear of it in the next epoch.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import CheckpointError
from holdfast.job.threads import NoAnswerError, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CheckpointNotifier:
    """Notifies listeners and functions of how checkpoints end."""

    def __init__(
        self,
        listeners: Iterable[Any],
        on_failure: Callable[[CheckpointError], None],
        time_limits: TimeLimits | None = None,
    ) -> None:
        """Notify `listeners`; one that raises or hangs is reported to `on_failure`."""
        self._listeners = tuple(listeners)
        self._time_limits = time_limits or TimeLimits()
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._completed: list[int] = []
        self._aborted: list[int] = []

    def completed(self, checkpoint_id: int) -> None:
        """Notify of a completed checkpoint."""
        with self._lock:
            self._completed.append(checkpoint_id)
        self._notify("notify_checkpoint_complete", checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Notify of an aborted checkpoint."""
        with self._lock:
            self._aborted.append(checkpoint_id)
        self._notify("notify_checkpoint_aborted", checkpoint_id)

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Completed and aborted checkpoints since the last call, for the functions."""
        with self._lock:
            news = tuple(self._completed), tuple(self._aborted)
            self._completed, self._aborted = [], []
        return news

    def _notify(self, method: str, checkpoint_id: int) -> None:
        for listener in self._listeners:
            call = partial(_call, getattr(listener, method), checkpoint_id)
            try:
                self._time_limits.call(f"listener {type(listener).__name__}", call)
            except NoAnswerError as error:
                self._on_failure(
                    CheckpointError(
                        f"the checkpoint listener {type(listener).__name__} hangs in "
                        f"{method}({checkpoint_id}): {error}; find out what it waits for, or set "
                        f"{COMMITTER_TIMEOUT.key} higher"
                    )
                )
            except Exception as error:
                self._on_failure(
                    CheckpointError(
                        f"a checkpoint listener raised in {method}({checkpoint_id}): "
                        f"{type(error).__name__}: {error}"
                    )
                )


def _call(method: Callable[[int], None], checkpoint_id: int, wanted: Callable[[], bool]) -> None:
    method(checkpoint_id)
