"""Telling how checkpoints end: listeners on the driver at once, functions in the next epoch."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import CheckpointError
from holdfast.job.threads import NoAnswerError, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CheckpointNotifier:
    """Who is told, and what functions have not heard yet."""

    def __init__(
        self,
        listeners: Iterable[Any],
        on_failure: Callable[[CheckpointError], None],
        patience: Patience | None = None,
    ) -> None:
        """Tell `listeners`; one that raises, or hangs, is reported to `on_failure`."""
        self._listeners = tuple(listeners)
        self._patience = patience or Patience()
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._completed: list[int] = []
        self._aborted: list[int] = []

    def completed(self, checkpoint_id: int) -> None:
        """Tell of a complete one."""
        with self._lock:
            self._completed.append(checkpoint_id)
        self._tell("notify_checkpoint_complete", checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Tell of one that has failed."""
        with self._lock:
            self._aborted.append(checkpoint_id)
        self._tell("notify_checkpoint_aborted", checkpoint_id)

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Complete and failed ones that functions have not heard of; they are told now."""
        with self._lock:
            told = tuple(self._completed), tuple(self._aborted)
            self._completed, self._aborted = [], []
        return told

    def _tell(self, method: str, checkpoint_id: int) -> None:
        for listener in self._listeners:
            tell = partial(_tell, getattr(listener, method), checkpoint_id)
            try:
                self._patience.call(f"listener {type(listener).__name__}", tell)
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


def _tell(method: Callable[[int], None], checkpoint_id: int, wanted: Callable[[], bool]) -> None:
    method(checkpoint_id)
