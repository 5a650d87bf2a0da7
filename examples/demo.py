"""The demo: a stateful job on generated data, with live progress and a summary.

Ten thousand URLs are visited half a million times; the job counts the visits of
each. Run it with `make demo`.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from url_count import url_count

from holdfast import JobExecutionResult, RuntimeContext, SinkFunction, StreamExecutionEnvironment

if TYPE_CHECKING:
    from holdfast.statistics import EpochStatistics

VISITS = 500_000
VISITS_PER_SECOND = 100_000
URLS = 10_000


class Visit(NamedTuple):
    """One request."""

    user: int
    url: str


def visit(number: int) -> Visit:
    """The visit of a number: the same every time, some URLs far more often than others."""
    mixed = number * 2654435761 % 2**32
    return Visit(mixed % 1000, f"/page/{int((mixed / 2**32) ** 3 * URLS)}")


class Milestones(SinkFunction):
    """Counts how many URLs have reached a thousand visits."""

    def open(self, ctx: RuntimeContext) -> None:
        """Register the metric."""
        self.reached = ctx.get_metrics_group().counter("urls-with-1000-visits")

    def invoke(self, value: Any, context: Any) -> None:
        """Look at one count."""
        if value.count == 1000:
            self.reached.inc()


class Progress:
    """A line that follows the job."""

    def __init__(self) -> None:
        """Nothing done yet."""
        self.events = 0
        self.start = time.monotonic()

    def __call__(self, epoch: EpochStatistics) -> None:
        """Show one more epoch."""
        self.events += epoch.events
        done = self.events / VISITS
        bar = "#" * round(30 * done)
        end = "\n" if not sys.stdout.isatty() or self.events >= VISITS else ""
        print(
            f"\r  [{bar:<30}] {done:4.0%}  epoch {epoch.epoch:>3}  "
            f"{self.events:>9,} events  {epoch.duration_ms:>5} ms",
            end=end,
            flush=True,
        )


def summarise(result: JobExecutionResult, seconds: float) -> None:
    """Say what the job has done."""
    statistics = result.statistics
    counted = statistics.operators["url-count"]
    reached = statistics.operators["milestones"].metrics.counters["urls-with-1000-visits"]
    print(f"\n  job        {result.name} ({result.job_id})")
    print(f"  status     {statistics.status.value} after {seconds:.1f} s")
    print(f"  epochs     {statistics.epochs}")
    print(f"  events     {statistics.events:,} in, {counted.records_out:,} counts out")
    print(f"  state      {counted.state_entries:,} entries, {counted.state_bytes / 1e6:.1f} MB")
    print(f"  milestones {reached} URLs reached 1000 visits")


def main() -> None:
    """Run the demo."""
    logging.basicConfig(level=logging.ERROR)
    print("Starting Spark ...", flush=True)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.spark.sparkContext.setLogLevel("ERROR")
    env.set_max_events_per_epoch(50_000)
    env.add_epoch_listener(Progress())
    visits = env.from_generator(visit, count=VISITS, rate=VISITS_PER_SECOND, name="visits")
    url_count(visits).add_sink(Milestones()).uid("milestones").name("milestones")
    print(f"Counting {VISITS:,} visits, {VISITS_PER_SECOND:,} a second:", flush=True)
    start = time.monotonic()
    summarise(env.execute("demo"), time.monotonic() - start)


if __name__ == "__main__":
    main()
