"""For testing functions without Spark: a harness with a clock of your own."""

from holdfast.testing.clock import ManualClock
from holdfast.testing.harness import OperatorHarness
from holdfast.testing.snapshots import HarnessSnapshot

__all__ = ["HarnessSnapshot", "ManualClock", "OperatorHarness"]
