"""Hourly and daily counts: one stream, cut into windows of two lengths.

How often was every page visited, by the hour and by the day? Visits come up to ten minutes out
of order. A window gives its count out when the watermark has passed its end; at the end of the
data all windows do.

    visits --key_by(page)--+--> windows of an hour --> count
                           +--> windows of a day   --> count

Run it with `make example-hourly_and_daily_counts`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from holdfast import StreamExecutionEnvironment, WatermarkStrategy
from holdfast.windows import TumblingEventTimeWindows

if TYPE_CHECKING:
    from holdfast import DataStream


class Visit(NamedTuple):
    """A page that was visited, and when."""

    page: str
    at: datetime


VISITS = [
    Visit("/home", datetime(2026, 3, 1, 22, 10, tzinfo=UTC)),
    Visit("/docs", datetime(2026, 3, 1, 22, 15, tzinfo=UTC)),
    Visit("/home", datetime(2026, 3, 1, 23, 5, tzinfo=UTC)),
    Visit("/home", datetime(2026, 3, 1, 22, 59, tzinfo=UTC)),
    Visit("/home", datetime(2026, 3, 1, 23, 59, tzinfo=UTC)),
    Visit("/docs", datetime(2026, 3, 2, 0, 0, tzinfo=UTC)),
    Visit("/home", datetime(2026, 3, 2, 0, 3, tzinfo=UTC)),
    Visit("/home", datetime(2026, 3, 1, 23, 58, tzinfo=UTC)),
    Visit("/docs", datetime(2026, 3, 2, 0, 40, tzinfo=UTC)),
]


def counts(visits: DataStream, size: str) -> DataStream:
    """How often every page was visited in windows of a length, such as "1 hour"."""
    windows = TumblingEventTimeWindows.of(size)
    return visits.key_by("page").window(windows).count().uid(f"visits in {size}")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).set_max_events_per_epoch(4)
    times = WatermarkStrategy.for_bounded_out_of_orderness("10 min").with_timestamp_assigner("at")
    visits = env.from_collection(VISITS)
    timed = visits.assign_timestamps_and_watermarks(times).uid("times")
    both = counts(timed, "1 hour").union(counts(timed, "1 day"))
    for page, start, end, count in sorted(both.execute_and_collect("counts")):
        print(f"{page} {start:%d %b %H:%M} - {end:%d %b %H:%M}: {count}")


if __name__ == "__main__":
    main()
