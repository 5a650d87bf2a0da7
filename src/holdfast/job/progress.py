"""Prints the progress of a job as one changing line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from holdfast.clock import SystemClock

if TYPE_CHECKING:
    from holdfast.job.model import JobExecutionResult, JobHandle
    from holdfast.job.statistics import CheckpointingStatistics, JobStatistics

EVERY = 0.5
"""Seconds between two updates."""
_ERASE = "\r\x1b[K"


def wait_watched(client: JobHandle, stream: TextIO | None = None) -> JobExecutionResult:
    """Wait for the end of a job, and show its progress as one changing line."""
    target = sys.stderr if stream is None else stream
    try:
        while True:
            try:
                return client.result(EVERY)
            except TimeoutError:
                if client.status().is_terminal:
                    # The job ended in between, or failed with a TimeoutError itself.
                    return client.result()
                target.write(f"{_ERASE}{progress_line(client.statistics())}")
                target.flush()
    finally:
        target.write(_ERASE)
        target.flush()


def progress_line(figures: JobStatistics, now: int | None = None) -> str:
    """Format statistics as one line.

    Example: `counts · epoch 12 · 2,400,000 events · 480,000/s · checkpoint 3, 0.8 s ago, 1.2 MB`
    """
    parts = [figures.name, f"epoch {figures.epochs}", f"{figures.events:,} events"]
    last = figures.last_epoch
    if last is not None and last.duration_ms:
        parts.append(f"{last.events * 1000 // last.duration_ms:,}/s")
    if figures.checkpoints is not None:
        parts.append(_checkpoints(figures.checkpoints, now or SystemClock().now_ms()))
    if figures.restarts:
        parts.append(f"{figures.restarts} restarts")
    if figures.status.value != "RUNNING":
        parts.append(figures.status.value.lower())
    return " · ".join(parts)


def _checkpoints(figures: CheckpointingStatistics, now: int) -> str:
    failed = f", {figures.failed} failed" if figures.failed else ""
    last = figures.latest_completed
    if last is None:
        return f"no checkpoint yet{failed}"
    age = max(0, now - last.trigger_timestamp - last.end_to_end_duration_ms) / 1000
    return f"checkpoint {last.id}, {age:.1f} s ago, {last.state_size / 1e6:.1f} MB{failed}"
