"""Pattern evaluator: finds users whose last two actions match a pattern that changes.

The actions of users are keyed by user. The pattern in force is broadcast: every subtask
keeps a copy of it, in broadcast state. For each action the function looks at the
user's previous one, which is keyed state, and at the pattern:

    actions  --key_by(user)--> previous action, by user --+
                                                          +--> matches
    patterns --broadcast-----> pattern, on every subtask -+

In an epoch the broadcast elements come first, so a new pattern counts for all actions
of its epoch. Here each epoch has four actions and one pattern, whatever the machine.

Run it with `make example-pattern_evaluator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast import (
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext


class Action(NamedTuple):
    """Something that a user did."""

    user: int
    action: str


class Pattern(NamedTuple):
    """Two actions, one after the other."""

    first: str
    second: str


class Match(NamedTuple):
    """A user whose last two actions were those of the pattern."""

    user: int
    first: str
    second: str


PER_EPOCH = 4
ACTIONS = [
    # The pattern is (login, logout).
    Action(1001, "login"),
    Action(1002, "add"),
    Action(1001, "logout"),
    Action(1003, "login"),
    # The pattern is (add, logout).
    Action(1003, "logout"),
    Action(1002, "logout"),
    Action(1001, "login"),
    Action(1004, "login"),
    # It is (login, logout) again.
    Action(1001, "logout"),
    Action(1004, "add"),
    Action(1004, "logout"),
    Action(1002, "login"),
]
PATTERNS = [Pattern("login", "logout"), Pattern("add", "logout"), Pattern("login", "logout")]

PATTERN_STATE = MapStateDescriptor("patterns", type(None), Pattern)
"""One pattern at a time, under the key None."""


class PatternEvaluator(KeyedBroadcastProcessFunction):
    """Compares the last two actions of every user with the pattern in force."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the user's previous action."""
        self.previous = ctx.get_state(ValueStateDescriptor("last-action", str))

    def process_element(self, value: Action, ctx: Any) -> Iterator[Match]:
        """Evaluate the pattern; here the broadcast state can only be read."""
        pattern = ctx.get_broadcast_state(PATTERN_STATE).get(None)
        if pattern is not None and pattern == (self.previous.value(), value.action):
            yield Match(ctx.get_current_key(), *pattern)
        self.previous.update(value.action)

    def process_broadcast_element(self, value: Pattern, ctx: Any) -> None:
        """Replace the pattern, on every subtask."""
        ctx.get_broadcast_state(PATTERN_STATE).put(None, value)


def matches(actions: DataStream, patterns: DataStream) -> DataStream:
    """The job: actions and patterns in, matches out."""
    return (
        actions.key_by("user")
        .connect(patterns.broadcast(PATTERN_STATE))
        .process(PatternEvaluator())
        .uid("pattern-evaluator")
    )


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).set_max_events_per_epoch(PER_EPOCH)
    actions = env.from_collection(ACTIONS)
    # As often as there are actions, so that both streams take as many epochs.
    repeated = [pattern for pattern in PATTERNS for _ in range(PER_EPOCH)]
    patterns = env.from_collection(repeated)
    for match in matches(actions, patterns).execute_and_collect("pattern-evaluator"):
        print(match)


if __name__ == "__main__":
    main()
