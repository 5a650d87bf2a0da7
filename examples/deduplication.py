"""Deduplication: every payment once, and no memory of it for ever.

Payments are delivered more than once. That an id has been seen is state of that id, with a time
to live of an hour of event time: repeats come soon, and what is older need not be remembered.

It is forgotten when the watermark is an hour past the payment. So a repeat within the hour is
dropped, unless it comes late; one that is made later, such as `p1` at minute 95, passes once the
watermark, which moves by epochs, has come that far.

Run it with `make example-deduplication`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast import (
    KeyedProcessFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext

MINUTE = 60_000
FOR_AN_HOUR = StateTtlConfig.new_builder("1 hour").use_event_time().build()


class Payment(NamedTuple):
    """A payment, and when it was made."""

    id: str
    cents: int
    minute: int


PAYMENTS = [
    Payment("p1", 500, 0),
    Payment("p2", 120, 1),
    Payment("p1", 500, 2),
    Payment("p3", 80, 10),
    Payment("p2", 120, 12),
    Payment("p4", 999, 90),
    Payment("p4", 999, 91),
    Payment("p5", 10, 92),
    Payment("p5", 10, 93),
    Payment("p1", 500, 95),
    Payment("p4", 999, 96),
]


class FirstOnly(KeyedProcessFunction):
    """Lets the first element of every key pass."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of whether the key was seen."""
        self.seen = ctx.get_state(ValueStateDescriptor("seen", bool, ttl=FOR_AN_HOUR))

    def process_element(self, value: Payment, ctx: Any) -> Iterator[Payment]:
        """Pass it on, if it is the first."""
        if not self.seen.value():
            self.seen.update(True)
            yield value


def once(payments: DataStream) -> DataStream:
    """The job: payments in, each once out."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 min")
    times = strategy.with_timestamp_assigner(lambda payment, _: payment.minute * MINUTE)
    timed = payments.assign_timestamps_and_watermarks(times).uid("times")
    return timed.key_by("id").process(FirstOnly()).uid("first-only")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1).set_max_events_per_epoch(3)
    for payment in once(env.from_collection(PAYMENTS)).execute_and_collect("deduplication"):
        print(payment)


if __name__ == "__main__":
    main()
