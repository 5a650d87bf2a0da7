"""State machine: alerts on events that must not happen in the state a device is in.

Every source address goes through the life of a connection:

    INITIAL --open--> OPENED --login--> ACTIVE --request--> ACTIVE
       ^                |                  |
       +-----close------+------logout------+

An event that the table does not foresee is an alert and changes nothing. Closing
and logging out end the life; the address is forgotten.

Run it with `make example-state_machine`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast import FlatMapFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast import DataStream, RuntimeContext


class State(Enum):
    """Where in its life a connection is."""

    INITIAL = "INITIAL"
    OPENED = "OPENED"
    ACTIVE = "ACTIVE"
    TERMINAL = "TERMINAL"


TRANSITIONS = {
    (State.INITIAL, "open"): State.OPENED,
    (State.OPENED, "login"): State.ACTIVE,
    (State.OPENED, "close"): State.TERMINAL,
    (State.ACTIVE, "request"): State.ACTIVE,
    (State.ACTIVE, "logout"): State.TERMINAL,
}
"""State after an event; what is not here is invalid."""


class Event(NamedTuple):
    """Something that happened at a source address."""

    source_address: int
    type: str


class Alert(NamedTuple):
    """An event that was invalid in the state its source address was in."""

    source_address: int
    state: str
    type: str


EVENTS = [
    Event(1, "open"),
    Event(2, "login"),
    Event(1, "login"),
    Event(1, "open"),
    Event(1, "request"),
    Event(1, "logout"),
    Event(1, "request"),
    Event(1, "open"),
]


class StateMachine(FlatMapFunction):
    """Follows every source address through the table above."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the current state; none is the initial one."""
        self.current = ctx.get_state(ValueStateDescriptor("state", State))

    def flat_map(self, value: Event) -> Iterator[Alert]:
        """Move on, or give the alarm."""
        state = self.current.value() or State.INITIAL
        after = TRANSITIONS.get((state, value.type))
        if after is None:
            yield Alert(value.source_address, state.value, value.type)
        elif after is State.TERMINAL:
            self.current.clear()
        else:
            self.current.update(after)


def alerts(events: DataStream) -> DataStream:
    """The job: events in, alerts out."""
    return events.key_by("source_address").flat_map(StateMachine()).uid("state-machine")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    for alert in alerts(env.from_collection(EVENTS)).execute_and_collect("state-machine"):
        print(alert)


if __name__ == "__main__":
    main()
