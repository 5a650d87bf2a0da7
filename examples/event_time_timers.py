"""Event-time timers: who has fallen silent, by the time in the data and not by the clock.

A device that has sent nothing for ten minutes is reported once. Each reading sets a timer
ten minutes ahead and takes back the one before it; the timer that is reached is the report.

The watermark moves at the end of an epoch, so a timer has its turn after all readings of
the epoch. A reading that comes more than ten minutes after the last one may be in the same
epoch as that one: then the function sees the gap itself. Either way there is one report,
wherever the epochs are cut. At the end of the data every timer fires.

Run it with `make example-event_time_timers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast import (
    Duration,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext

MINUTE = 60_000
SILENCE = 10 * MINUTE


class Reading(NamedTuple):
    """What a device sent, and when."""

    device: str
    minute: int


class Silence(NamedTuple):
    """A device that sent nothing for ten minutes from here on."""

    device: str
    since_minute: int


READINGS = [
    Reading("pump", 0),
    Reading("fan", 1),
    Reading("pump", 6),
    Reading("pump", 5),
    Reading("fan", 9),
    Reading("pump", 21),
    Reading("fan", 17),
    Reading("fan", 24),
    Reading("pump", 40),
    Reading("pump", 44),
]


class SilenceAlarm(KeyedProcessFunction):
    """Reports a device ten minutes after its last reading."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the time of the last reading."""
        self.last = ctx.get_state(ValueStateDescriptor("last", int))

    def process_element(self, value: Reading, ctx: Any) -> Iterator[Silence]:
        """Set the timer anew, unless the reading is older than the last."""
        time, last, timers = ctx.timestamp(), self.last.value(), ctx.timer_service()
        if last is not None:
            if time <= last:
                return
            timers.delete_event_time_timer(last + SILENCE)
            if time > last + SILENCE:
                yield Silence(value.device, last // MINUTE)
        self.last.update(time)
        timers.register_event_time_timer(time + SILENCE)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Silence]:
        """Ten minutes have passed."""
        self.last.clear()
        yield Silence(ctx.get_current_key(), (timestamp - SILENCE) // MINUTE)


def silences(readings: DataStream) -> DataStream:
    """The job: readings in, silences out."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(5))
    return (
        readings.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda reading, _: reading.minute * MINUTE)
        )
        .uid("times")
        .key_by("device")
        .order_by()  # by event time, within an epoch
        .process(SilenceAlarm())
        .uid("silence-alarm")
    )


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1).set_max_events_per_epoch(3)
    for silence in silences(env.from_collection(READINGS)).execute_and_collect("silence"):
        print(silence)


if __name__ == "__main__":
    main()
