"""Sources that wait for long are warned of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from holdfast.spark.epoch_runner import LONG_WAIT_MS, EpochRunner
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    import pytest


def test_a_warning_names_the_source_whose_event_time_does_not_advance_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner: Any = EpochRunner.__new__(EpochRunner)
    runner._clock, runner._awaited = ManualClock(), {}
    runner._job = SimpleNamespace(name="trade")

    def look(watermark: int, later_ms: int) -> int:
        runner._clock.advance(later_ms)
        runner._warn_of_long_waits(frozenset({"fast"}), {"slow": watermark})
        return len(caplog.records)

    assert look(0, 0) == look(0, LONG_WAIT_MS) == 0
    assert look(1, 1) == look(1, LONG_WAIT_MS) == 0, "it has advanced"
    assert look(1, 1) == look(1, LONG_WAIT_MS * 2) == 1
    assert "for 60 s fast waited for the source slow" in caplog.text
    assert look(2, 1) == 1
    assert look(2, LONG_WAIT_MS + 1) == 2
