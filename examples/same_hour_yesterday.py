"""The same hour yesterday: windows first, then state over what they give out.

The orders of every shop are counted by the hour. Each count is compared with that of the same
hour on the day before, which is kept as state of a shop and an hour of the day:

    orders --key_by(shop)--> count by the hour --key_by(shop, hour)--> compare

The windows of a key end in order of time, so the counts of an hour come day by day.

Run it with `make example-same_hour_yesterday`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from holdfast import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.windows import TumblingEventTimeWindows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext


class HourCount(NamedTuple):
    """How many orders an hour had."""

    start: datetime
    orders: int


ORDERS = [
    *(("north", datetime(2026, 3, 1, 9, minute, tzinfo=UTC)) for minute in (5, 20, 50)),
    ("south", datetime(2026, 3, 1, 9, 55, tzinfo=UTC)),
    ("north", datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
    *(("north", datetime(2026, 3, 2, 9, minute, tzinfo=UTC)) for minute in (1, 10, 11, 30, 45)),
    ("south", datetime(2026, 3, 3, 9, 30, tzinfo=UTC)),
    ("north", datetime(2026, 3, 3, 9, 40, tzinfo=UTC)),
]


class SameHourYesterday(KeyedProcessFunction):
    """Compares a count with the last one of the same shop and hour of the day."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the last count."""
        self.last = ctx.get_state(ValueStateDescriptor("last", HourCount))

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        """An hour without orders has no window: the last count may be older than a day."""
        last = self.last.value()
        followed = last is not None and value.window_start - last.start == timedelta(days=1)
        before = last.orders if last is not None and followed else 0
        yield f"{value.shop} {value.window_start:%d %b %H} h: {value.count}, a day ago {before}"
        self.last.update(HourCount(value.window_start, value.count))


def comparisons(orders: DataStream) -> DataStream:
    """The job: orders in, a line for every hour that has orders out."""
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = orders.assign_timestamps_and_watermarks(times).uid("times")
    hourly = timed.key_by("shop").window(TumblingEventTimeWindows.of("1 hour")).count()
    same_hour = hourly.uid("hourly").key_by(lambda row: (row.shop, row.window_start.hour))
    return same_hour.process(SameHourYesterday()).uid("same-hour-yesterday")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1).set_max_events_per_epoch(5)
    orders = env.from_collection(ORDERS, "shop string, at timestamp")
    for line in comparisons(orders).execute_and_collect("same-hour-yesterday"):
        print(line)


if __name__ == "__main__":
    main()
