"""User sessions: what every user did in one go.

A session ends when a user has done nothing for half an hour. Every click opens a window from
its time to half an hour later, and windows of one user that meet become one. So a click that
comes late can join two sessions, as Ann's at minute 20 does.

Run it with `make example-user_sessions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast import StreamExecutionEnvironment, WatermarkStrategy
from holdfast.windows import EventTimeSessionWindows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast import DataStream
    from holdfast.windows import TimeWindow

MINUTE = 60_000


class Click(NamedTuple):
    """A page that a user opened, and when."""

    user: str
    page: str
    minute: int


class Session(NamedTuple):
    """What a user did in one go."""

    user: str
    first_minute: int
    last_minute: int
    path: str


CLICKS = [
    Click("ann", "home", 0),
    Click("bob", "home", 5),
    Click("ann", "cart", 40),
    Click("ann", "book", 20),
    Click("bob", "help", 50),
    Click("ann", "home", 95),
    Click("bob", "book", 61),
    Click("ann", "book", 99),
]


def session(user: str, window: TimeWindow, clicks: Sequence[Click]) -> Iterator[Session]:
    """The session that a window is; clicks are in the order of their arrival."""
    in_order = sorted(clicks, key=lambda click: click.minute)
    path = " > ".join(click.page for click in in_order)
    yield Session(user, in_order[0].minute, in_order[-1].minute, path)


def sessions(clicks: DataStream) -> DataStream:
    """The job: clicks in, sessions out."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("30 min")
    return (
        clicks.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda click, _: click.minute * MINUTE)
        )
        .uid("times")
        .key_by("user")
        .window(EventTimeSessionWindows.with_gap("30 min"))
        .apply(session)
        .uid("sessions")
    )


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1).set_max_events_per_epoch(3)
    for one in sessions(env.from_collection(CLICKS)).execute_and_collect("sessions"):
        print(one)


if __name__ == "__main__":
    main()
