"""Noticing that an executor is gone.

Tasks wait long for the executor that holds their state, and would wait for one that
never comes back. So the driver looks which executors there are, and breaks the epoch
off when one of them has disappeared.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from holdfast.errors import JobExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from holdfast.spark.pinning import Pinning

LOOK_EVERY = 0.5
"""Seconds between two looks."""


class ExecutorWatch:
    """Tells when an executor disappears; does nothing where there is but the driver."""

    def __init__(
        self, spark: SparkSession, pinning: Pinning, on_loss: Callable[[BaseException], None]
    ) -> None:
        """Watch from now on."""
        self._context = spark.sparkContext
        self._on_loss = on_loss
        self._stopped = threading.Event()
        self._known: frozenset[str] = frozenset()
        if not pinning.local:
            InheritableThread(target=self._run, daemon=True).start()

    def note(self) -> None:
        """Take the executors that there are now for the ones to have."""
        self._known = self._present()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY):
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

    def _present(self) -> frozenset[str]:
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        return frozenset(f"{info.host()}:{info.port()}" for info in infos)
