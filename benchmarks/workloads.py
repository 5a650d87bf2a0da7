"""The three pieces of work that every system in the benchmark does.

A workload is plain data plus one pure function: the state of a key and an event in,
the new state and perhaps an output out. Every system runs that same function, so
their outputs can be compared row by row.

    W1  URL count       100,000 skewed string keys, one output per event
    W2  state machine   50,000 keys, an alert on an invalid transition (about 1 %)
    W3  wide and rare   500,000 keys, each updated twice per million events
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

State: TypeAlias = "tuple[Any, ...] | None"
Event: TypeAlias = "tuple[Any, ...]"
Output: TypeAlias = "tuple[Any, ...] | None"


@dataclass(frozen=True, slots=True)
class Workload:
    """One piece of work: what comes in, what is kept per key, what goes out."""

    name: str
    title: str
    keys: int
    """Number of distinct keys in the stream."""
    columns: Mapping[str, str]
    """Input columns and their Spark types, in the order of an event's fields."""
    key: str
    """Name of the column that is the key."""
    state: Mapping[str, str]
    """Fields of a key's state and their Spark types."""
    output: Mapping[str, str]
    """Output columns and their Spark types."""
    step: Callable[[State, Event], tuple[State, Output]]
    """New state (None clears it) and output (None for none) of one event."""

    @property
    def key_index(self) -> int:
        """Position of the key in an event."""
        return list(self.columns).index(self.key)


def ddl(fields: Mapping[str, str]) -> str:
    """Fields as a Spark schema string."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())


def count_url(state: State, event: Event) -> tuple[State, Output]:
    """Count the events of one URL; every event emits the count so far."""
    count = 1 if state is None else state[0] + 1
    return (count,), (event[1], count)


IDLE = "idle"
"""State of a source that is not being followed: it has no state at all."""

TRANSITIONS: Mapping[tuple[str, str], str] = {
    (IDLE, "dial"): "ringing",
    ("ringing", "answer"): "talking",
    ("ringing", "hang_up"): IDLE,
    ("talking", "speak"): "talking",
    ("talking", "hold"): "waiting",
    ("talking", "hang_up"): IDLE,
    ("waiting", "resume"): "talking",
    ("waiting", "hang_up"): IDLE,
}
"""The valid transitions of W2: (state, event type) to the next state."""


def follow_call(state: State, event: Event) -> tuple[State, Output]:
    """Follow one source through `TRANSITIONS`; an invalid event emits an alert.

    An invalid event leaves the state as it is; one that leads back to `IDLE` clears it.
    """
    current = IDLE if state is None else state[0]
    following = TRANSITIONS.get((current, event[2]))
    if following is None:
        return state, (event[1], current, event[2])
    return (None if following == IDLE else (following,)), None


def sum_account(state: State, event: Event) -> tuple[State, Output]:
    """Keep count, total and last label of a key; emit when the count becomes even."""
    key, amount, label = event
    count, total = (1, amount) if state is None else (state[0] + 1, state[1] + amount)
    return (count, total, label), (None if count % 2 else (key, count, total))


W1 = Workload(
    name="W1",
    title="URL count",
    keys=100_000,
    columns={"ts": "bigint", "url": "string", "user": "bigint"},
    key="url",
    state={"count": "bigint"},
    output={"url": "string", "count": "bigint"},
    step=count_url,
)

W2 = Workload(
    name="W2",
    title="state machine",
    keys=50_000,
    columns={"ts": "bigint", "source": "bigint", "type": "string"},
    key="source",
    state={"state": "string"},
    output={"source": "bigint", "state": "string", "type": "string"},
    step=follow_call,
)

W3 = Workload(
    name="W3",
    title="wide and rare",
    keys=500_000,
    columns={"key": "bigint", "amount": "double", "label": "string"},
    key="key",
    state={"count": "bigint", "total": "double", "last": "string"},
    output={"key": "bigint", "count": "bigint", "total": "double"},
    step=sum_account,
)

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (W1, W2, W3)}
"""Every workload, by name."""
