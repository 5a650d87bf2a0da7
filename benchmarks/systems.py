"""Every system that is measured: Spark's own, and Holdfast where it is there."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers import PEERS, STATELESS

if TYPE_CHECKING:
    from benchmarks.harness import Run
    from benchmarks.workloads import Workload

HOLDFAST_MODULE = "benchmarks.holdfast_run"
"""Where the Holdfast side is: a `Run` named `run`, and the names of its `BACKENDS`."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One system with one backend."""

    system: str
    backend: str
    run: Run

    def can(self, workload: Workload) -> bool:
        """Whether the system can express the workload at all."""
        return self.system != "aggregate" or workload.name != "W2"


def contenders() -> list[Contender]:
    """Every system there is, Holdfast last."""
    found = [
        Contender(name, "none" if name in STATELESS else "rocksdb", run)
        for name, run in PEERS.items()
    ]
    if importlib.util.find_spec(HOLDFAST_MODULE) is not None:
        side = importlib.import_module(HOLDFAST_MODULE)
        found += [Contender("holdfast", backend, side.run) for backend in side.BACKENDS]
    return found
