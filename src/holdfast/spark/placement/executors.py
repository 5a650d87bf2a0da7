"""Noticing that an executor is gone.

Tasks wait long for the executor that holds their state, and would wait for one that
never comes back. So the driver looks which executors there are, and breaks the epoch
off when one of them has disappeared.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from holdfast.errors import JobExecutionError
from holdfast.job.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from holdfast.spark.placement.pinning import Pinning

logger = logging.getLogger("holdfast")

LOOK_EVERY = 0.5
"""Seconds between two looks."""


class ExecutorWatch:
    """Tells when an executor disappears; does nothing where there is but the driver."""

    def __init__(
        self,
        spark: SparkSession,
        pinning: Pinning,
        on_loss: Callable[[BaseException], None],
        *,
        look_every: float = LOOK_EVERY,
    ) -> None:
        """Watch from now on."""
        self._look_every = look_every
        self._context = spark.sparkContext
        self._on_loss = on_loss
        self._stopped = threading.Event()
        self._known: frozenset[str] = frozenset()
        if not pinning.local:
            start_thread("watching executors", self._run)

    def note(self) -> None:
        """Take the executors that there are now for the ones to have."""
        self._known = self._present()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _run(self) -> None:
        """Look again and again, whatever a look comes to, until nobody needs that any more."""
        said = False
        while not self._stopped.wait(self._look_every):
            try:
                if self._session_has_ended():
                    return
                self._look()
            except Exception as error:
                # It may be a passing one. Without the watch, a loss is noticed only when Spark
                # gives up waiting for a task's place, which takes minutes.
                if not said:
                    logger.warning("executors could not be looked at; trying on: %s", error)
                    said = True

    def _look(self) -> None:
        known = self._known
        lost = known - self._present()
        if lost and known is self._known:
            self._known = known - lost
            self._on_loss(
                JobExecutionError(
                    f"executor {', '.join(sorted(lost))} is gone, and with it the local state "
                    "of its subtasks"
                )
            )

    def _session_has_ended(self) -> bool:
        """Whether it has for certain; an error says nothing."""
        java = self._context._jsc
        return java is None or bool(java.sc().isStopped())

    def _present(self) -> frozenset[str]:
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        return frozenset(f"{info.host()}:{info.port()}" for info in infos)
