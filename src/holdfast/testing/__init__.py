"""For testing functions without Spark: a harness with a clock of your own."""

from holdfast.testing.clock import ManualClock
from holdfast.testing.harness import OperatorHarness

__all__ = ["ManualClock", "OperatorHarness"]
