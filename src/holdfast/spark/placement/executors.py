"""Notices lost executors.

Tasks wait long for the executor that holds their state, even for one that never comes
back. So the driver checks which executors are alive, and aborts the epoch when one is
lost.
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
"""Seconds between two checks."""


class ExecutorWatch:
    """Reports lost executors; does nothing if there is only the driver."""

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
        """Expect the executors that are alive now."""
        self._known = self._present()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _run(self) -> None:
        """Check repeatedly, even after errors, until the watch ends."""
        said = False
        while not self._stopped.wait(self._look_every):
            try:
                if self._session_has_ended():
                    return
                self._look()
            except Exception as error:
                # The error may be temporary. Without the watch, a loss is noticed only when Spark
                # stops waiting for the preferred executor, which takes minutes.
                if not said:
                    logger.warning("the executors could not be checked; trying again: %s", error)
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
        """Whether it has ended for certain; errors do not count."""
        java = self._context._jsc
        return java is None or bool(java.sc().isStopped())

    def _present(self) -> frozenset[str]:
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        return frozenset(f"{info.host()}:{info.port()}" for info in infos)
