"""Functions beside a broadcast stream: who may read, who may write, what all subtasks hold."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    BroadcastProcessFunction,
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    HashMapStateBackend,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import (
    StateAccessError,
    StateDescriptorError,
    StateValueError,
    UserFunctionError,
)
from holdfast.functions import ReadOnlyBroadcastState
from holdfast.runtime import operator_store
from holdfast.state.backend import KeyedStateBackend
from holdfast.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
RULES = MapStateDescriptor("rules", str, list[int])
MORE = MapStateDescriptor("more", str, int)
COUNT = ValueStateDescriptor("count", int)
SEEN = ListStateDescriptor("seen", str)


def whole(value: Any) -> Any:
    return value


class Keyed(KeyedBroadcastProcessFunction):
    """Does on either side what the test has said."""

    def __init__(self, data: Callable[..., Any], control: Callable[..., Any] | None = None) -> None:
        self.data, self.control = data, control
        self.fired: Callable[..., Any] | None = None

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(COUNT)
        self.seen = ctx.get_list_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.data(self, value, ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        if self.control is not None:
            return self.control(self, value, ctx)
        ctx.get_broadcast_state(RULES).put(*value)
        return None

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert self.fired is not None
        return self.fired(self, timestamp, ctx)


class Plain(BroadcastProcessFunction):
    def __init__(self, data: Callable[..., Any]) -> None:
        self.data = data

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.data(self, value, ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(*value)
        yield "control", value[0], ctx.timestamp()


def rules_now(function: Any, value: Any, ctx: Any) -> list[Any]:
    return [dict(ctx.get_broadcast_state(RULES).items())]


def harness(function: Any, backend: Any = None, **more: Any) -> OperatorHarness:
    key = whole if isinstance(function, KeyedBroadcastProcessFunction) else None
    return OperatorHarness(function, key=key, broadcast=[RULES, MORE], backend=backend, **more)


def test_a_function_that_was_given_no_states_has_none() -> None:
    with OperatorHarness(Plain(rules_now)) as job:
        with pytest.raises(StateDescriptorError, match="The requested state does not exist"):
            job.push("x")
        with pytest.raises(StateDescriptorError, match="The requested state does not exist"):
            job.push_second(("a", [1]))


# Reading and writing


@BACKENDS
@pytest.mark.parametrize("kind", [Keyed, Plain])
def test_the_data_side_reads_what_the_broadcast_side_has_put(kind: Any, backend: Any) -> None:
    with harness(kind(rules_now), backend) as job:
        job.push("x")
        job.push_second(("a", [1]), ("b", [2]))
        job.push("x")
        job.end_epoch()
        job.push_second(("a", [3]))
        job.push("y")
        found = [out for out in job.outputs if isinstance(out, dict)]
        assert found == [{}, {"a": [1], "b": [2]}, {"a": [3], "b": [2]}]
        assert job.operator_state("rules") == {"a": [3], "b": [2]}


@BACKENDS
def test_changes_of_a_failed_epoch_are_gone(backend: Any) -> None:
    with harness(Keyed(rules_now), backend) as job:
        job.push_second(("a", [1]))
        job.end_epoch()
        job.push_second(("a", [2]), ("b", [2]))
        job.fail()
        job.push("x")
        assert job.outputs == [{"a": [1]}]


def test_both_sides_give_out_elements_and_learn_their_event_time() -> None:
    with harness(Plain(lambda f, value, ctx: [("data", value, ctx.timestamp())])) as job:
        job.push_second(("a", [1]), at=7)
        job.push("x", at=8)
        job.push("y")
        assert job.outputs == [("control", "a", 7), ("data", "x", 8), ("data", "y", None)]


@pytest.mark.parametrize("kind", [Keyed, Plain])
def test_the_data_side_cannot_change_the_state(kind: Any) -> None:
    views: list[Any] = []

    def look(function: Any, value: Any, ctx: Any) -> None:
        state: Any = ctx.get_broadcast_state(RULES)
        views.append(state)
        assert issubclass(type(state), ReadOnlyBroadcastState)
        for method in ("put", "put_all", "remove", "clear"):
            assert not hasattr(state, method)
        with pytest.raises(TypeError):
            state["a"] = [9]
        with pytest.raises(TypeError):
            del state["a"]

    with harness(kind(look)) as job:
        job.push_second(("a", [1]))
        job.push("x", "y")
        assert job.operator_state("rules") == {"a": [1]}
        assert views[0] is views[1]


def test_what_the_data_side_is_handed_is_its_own() -> None:
    def spoil(function: Any, value: Any, ctx: Any) -> None:
        state = ctx.get_broadcast_state(RULES)
        state.get("a").append(9)
        state["a"].append(9)
        dict(state.items())["a"].append(9)
        for rule in state.values():
            rule.append(9)

    with harness(Keyed(spoil)) as job:
        job.push_second(("a", [1]))
        job.push("x")
        assert job.operator_state("rules") == {"a": [1]}


def test_a_read_only_state_answers_all_that_a_map_does() -> None:
    def look(function: Any, value: Any, ctx: Any) -> Iterator[Any]:
        state = ctx.get_broadcast_state(RULES)
        yield state.get("a"), state["a"], state.get("z"), state["z"]
        yield state.contains("a"), "a" in state, state.contains("z"), "z" in state
        yield state.contains("none"), state.get("none")
        yield sorted(state.keys()), sorted(state), len(list(state.values())), state.is_empty()
        yield ctx.get_broadcast_state(MORE).is_empty(), list(ctx.get_broadcast_state(MORE))

    with harness(Keyed(look)) as job:
        job.push_second(("a", [1]), ("none", None))
        job.push("x")
        assert job.outputs == [
            ([1], [1], None, None),
            (True, True, False, False),
            (True, None),
            (["a", "none"], ["a", "none"], 2, False),
            (True, []),
        ]


def test_a_null_key_is_a_key() -> None:
    nothing = MapStateDescriptor("nothing", None, int)

    class Single(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield ctx.get_broadcast_state(nothing).get(None)

        def process_broadcast_element(self, value: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(nothing).put(None, value)

    with OperatorHarness(Single(), broadcast=[nothing]) as job:
        job.push_second(1, 2)
        job.end_epoch()
        job.push("x")
        assert job.outputs == [2]


# What is refused


@pytest.mark.parametrize("side", ["data", "control", "timer"])
def test_a_state_that_was_not_named_does_not_exist(side: str) -> None:
    def ask(function: Any, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(MapStateDescriptor("unknown", str, int))

    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(1)

    function = Keyed(arm if side == "timer" else ask, ask)
    function.fired = ask
    with harness(function) as job:
        if side == "timer":
            job.push("x")
        act = {
            "data": lambda: job.push("x"),
            "control": lambda: job.push_second("x"),
            "timer": lambda: job.advance_watermark(1),
        }[side]
        with pytest.raises(StateDescriptorError, match="The requested state does not exist: 'unk"):
            act()


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor("rules", int), "rules", None])
def test_a_broadcast_state_is_asked_for_by_the_descriptor_of_a_map(descriptor: Any) -> None:
    def ask(function: Any, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES)
        ctx.get_broadcast_state(descriptor)

    for use in ("push", "push_second"):
        with (
            harness(Keyed(ask, ask)) as job,
            pytest.raises(StateDescriptorError, match="asked for by its MapStateDescriptor, not"),
        ):
            getattr(job, use)("x")


def test_the_descriptor_that_was_broadcast_counts() -> None:
    def put(function: Any, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(MapStateDescriptor("rules", str, str)).put("a", "text")

    with harness(Keyed(rules_now, put)) as job, pytest.raises(StateValueError, match="'rules'"):
        job.push_second("x")


@BACKENDS
@pytest.mark.parametrize("kind", ["count", "seen"])
def test_the_broadcast_side_has_no_keyed_state(backend: Any, kind: str) -> None:
    def read(function: Any, value: Any, ctx: Any) -> Any:
        return [function.count.value()] if kind == "count" else function.seen.get()

    with harness(Keyed(rules_now, read), backend) as job:
        job.push("x")
        with pytest.raises(StateAccessError, match="used with no key set, outside of a keyed cont"):
            job.push_second("x")


@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("use", ["register", "delete"])
def test_the_broadcast_side_has_no_timers(domain: str, use: str) -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        getattr(ctx.timer_service(), f"{use}_{domain}_time_timer")(5)

    with harness(Keyed(rules_now, arm)) as job:
        job.push("x")
        with pytest.raises(StateAccessError, match="set and deleted while a key is set"):
            job.push_second("x")


def test_beside_a_stream_that_is_not_keyed_there_are_no_timers() -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(5)

    with (
        harness(Plain(arm)) as job,
        pytest.raises(StateAccessError, match="timers can only be set on a 'keyed stream'"),
    ):
        job.push("x")


def test_the_broadcast_side_learns_the_time() -> None:
    def tell(function: Any, value: Any, ctx: Any) -> list[Any]:
        return [(ctx.current_processing_time(), ctx.current_watermark(), ctx.timestamp())]

    with harness(Keyed(rules_now, tell)) as job:
        job.set_processing_time(50)
        job.advance_watermark(40)
        job.push_second("x", at=41)
        assert job.outputs == [(50, 40, 41)]


@pytest.mark.parametrize("policy", [ErrorPolicy.fail(), ErrorPolicy.skip()])
def test_a_broadcast_element_that_fails_fails_the_epoch_under_any_policy(
    policy: ErrorPolicy,
) -> None:
    def put(function: Any, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value, [1])
        if value == "bad":
            raise ValueError("no rule")

    with harness(Keyed(rules_now, put), on_error=policy) as job:
        job.push_second("good")
        job.end_epoch()
        with pytest.raises(UserFunctionError, match="ValueError: no rule"):
            job.push_second("other", "bad")
        assert job.operator_state("rules") == {"good": [1]}


def test_a_data_element_that_fails_is_skipped_and_leaves_no_trace() -> None:
    def data(function: Any, value: Any, ctx: Any) -> Iterator[Any]:
        function.count.update(1)
        ctx.timer_service().register_event_time_timer(5)
        yield value
        if value == "bad":
            raise ValueError("no good")

    function = Keyed(data)
    function.fired = lambda function, timestamp, ctx: [("timer", ctx.get_current_key())]
    with harness(function, on_error=ErrorPolicy.skip()) as job:
        job.push("a", "bad", "b")
        job.advance_watermark(5)
        assert job.skipped == 1
        assert job.outputs[:2] == ["a", "b"]
        assert sorted(job.outputs[2:]) == [("timer", "a"), ("timer", "b")]
        assert job.state("count", "bad") is None


# Timers


@BACKENDS
def test_timers_read_the_rules_and_cannot_change_them(backend: Any) -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(10)

    def fired(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        state = ctx.get_broadcast_state(RULES)
        assert not hasattr(state, "put")
        yield ctx.get_current_key(), timestamp, ctx.time_domain().value, dict(state.items())

    function = Keyed(arm)
    function.fired = fired
    with harness(function, backend) as job:
        job.push("x")
        job.end_epoch()
        job.push_second(("a", [1]))
        job.advance_watermark(10)
        assert job.outputs == [("x", 10, "event time", {"a": [1]})]


# The state of all keys


def count(function: Any, value: Any, ctx: Any) -> None:
    function.count.update((function.count.value() or 0) + 1)
    function.seen.add(value)


@BACKENDS
@pytest.mark.parametrize("chunk", [1, 2, 50_000])
def test_a_broadcast_element_visits_every_key_that_has_the_state(
    backend: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(KeyedStateBackend, keys_at_once=chunk)
    monkeypatch.setattr(operator_store, "KeyedStateBackend", limited)

    def visit(function: Any, value: Any, ctx: Any) -> Iterator[Any]:
        found: dict[str, int] = {}

        def one(key: str, state: Any) -> None:
            assert ctx.get_current_key() == key
            found[key] = state.value()
            if value == "clear" and key != "b":
                state.clear()
            if value == "add":
                state.update(state.value() + 10)

        ctx.apply_to_keyed_state(COUNT, one)
        assert function.count is not None
        yield found

    with harness(Keyed(count, visit), backend) as job:
        job.push_second("look")
        job.push("a", "b", "c", "a")
        job.push_second("look")
        job.end_epoch()
        job.push("d")
        job.push_second("add", "clear", "look")
        assert job.outputs == [
            {},
            {"a": 2, "b": 1, "c": 1},
            {"a": 2, "b": 1, "c": 1, "d": 1},
            {"a": 12, "b": 11, "c": 11, "d": 11},
            {"b": 11},
        ]
        assert job.state("count", "a") is None
        assert job.state("count", "b") == 11
        assert job.state("seen", "a") == ["a", "a"], "other states stay as they are"


def test_after_the_visit_there_is_no_key_again() -> None:
    def visit(function: Any, value: Any, ctx: Any) -> None:
        ctx.apply_to_keyed_state(COUNT, lambda key, state: state.clear())
        function.count.value()

    with harness(Keyed(count, visit)) as job:
        job.push("a")
        with pytest.raises(StateAccessError, match="used with no key set"):
            job.push_second("x")


def test_after_a_visit_that_was_broken_off_there_is_no_key_either() -> None:
    def broken(key: str, state: Any) -> None:
        raise KeyError(key)

    def visit(function: Any, value: Any, ctx: Any) -> None:
        with pytest.raises(KeyError):
            ctx.apply_to_keyed_state(COUNT, broken)
        function.count.value()

    with harness(Keyed(count, visit)) as job:
        job.push("a")
        with pytest.raises(StateAccessError, match="used with no key set"):
            job.push_second("x")


def test_a_visit_may_be_an_object_with_a_method() -> None:
    class Visit:
        def process(self, key: str, state: Any) -> None:
            visited.append((key, state.get()))

    visited: list[Any] = []
    with harness(
        Keyed(count, lambda function, value, ctx: ctx.apply_to_keyed_state(SEEN, Visit()))
    ) as job:
        job.push("a", "a")
        job.push_second("x")
        assert visited == [("a", ["a", "a"])]


def test_a_visit_that_raises_fails_the_element_and_leaves_no_key() -> None:
    def broken(key: str, state: Any) -> None:
        raise KeyError(key)

    with harness(
        Keyed(count, lambda function, value, ctx: ctx.apply_to_keyed_state(COUNT, broken))
    ) as job:
        job.push("a")
        job.end_epoch()
        with pytest.raises(Exception, match="KeyError: 'a'"):
            job.push_second("x")
        job.push("a")
        assert job.state("count", "a") == 2


# Restoring


@BACKENDS
@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 3), (3, 2), (2, 4), (3, 1)])
def test_every_subtask_has_the_whole_state_on_any_number_of_subtasks(
    backend: Any, old: int, new: int
) -> None:
    snapshots = []
    for subtask in range(old):
        with harness(Keyed(rules_now), backend, parallelism=old, subtask=subtask) as job:
            job.push_second(("a", [1]), ("b", [2]))
            job.push(*[key for key in "uvwxyz" if job.owns(key)])
            snapshots.append(job.snapshot())
    for subtask in range(new):
        with harness(
            Keyed(rules_now), backend, parallelism=new, subtask=subtask, restore_from=snapshots
        ) as job:
            assert job.operator_state("rules") == {"a": [1], "b": [2]}
            job.push("x")
            assert job.outputs == [{"a": [1], "b": [2]}]


def test_beside_a_stream_without_keys_there_is_no_keyed_state_to_visit() -> None:
    class Visits(Plain):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.apply_to_keyed_state(COUNT, lambda key, state: None)

    with harness(Visits(rules_now)) as job, pytest.raises(StateAccessError):
        job.push_second("x")
