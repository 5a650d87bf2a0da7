"""Tests functions without Spark: a harness with a clock that tests set.

Not here: helpers of Holdfast's own tests, in `tests/support`.
Imports: `runtime`, `state`, `api`, `serde`, `config`, `types`.
"""

from holdfast.testing.clock import ManualClock
from holdfast.testing.harness import OperatorHarness
from holdfast.testing.snapshots import HarnessSnapshot
from holdfast.testing.windows import window_joined, windowed

__all__ = ["HarnessSnapshot", "ManualClock", "OperatorHarness", "window_joined", "windowed"]
