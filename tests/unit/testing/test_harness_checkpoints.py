"""Operator state, snapshots, restores and notifications in the harness."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CheckpointedFunction,
    CheckpointListener,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    SinkFunction,
    ValueStateDescriptor,
)
from holdfast.errors import (
    ConfigurationError,
    JobGraphError,
    StateAccessError,
    StateDescriptorError,
    UserFunctionError,
)
from holdfast.functions import ListCheckpointed
from holdfast.testing.harness import OperatorHarness
from tests.support.functions import Count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.functions import FunctionInitializationContext, FunctionSnapshotContext
    from holdfast.testing.snapshots import HarnessSnapshot

BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)


def whole(value: Any) -> Any:
    return value


class Buffering(SinkFunction, CheckpointedFunction):
    """Keeps what it takes, in a state of every mode; fails when told to."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", int))
        self.union = store.get_union_list_state(ListStateDescriptor("union", int))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))
        self.buffer = list(self.split.get())
        self.raw = ctx.get_raw_operator_state_inputs()
        self.restored = (ctx.is_restored(), ctx.get_restored_checkpoint_id())

    def invoke(self, value: Any, context: Any) -> None:
        if value == "fail":
            raise ValueError("told to")
        self.buffer.append(value)
        self.union.add(value)
        self.rules.put("last", value)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        self.split.update(self.buffer)
        raw = ctx.get_raw_operator_state_output()
        for value in self.buffer:
            raw.start_new_partition()
            raw.write(str(value).encode())


class Sum(MapFunction, ListCheckpointed):
    """A running sum, in one element of a list."""

    def __init__(self) -> None:
        self.sum = 0

    def map(self, value: int) -> int:
        self.sum += value
        return self.sum

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        return [self.sum] if self.sum else []

    def restore_state(self, state: list[Any]) -> None:
        self.sum = sum(state)


class Ids(MapFunction, ListCheckpointed):
    """Notes the checkpoint that each epoch will be part of, and the time of its end."""

    def __init__(self) -> None:
        self.ids: list[Any] = []

    def map(self, value: Any) -> Any:
        return value

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        return [*self.ids, (checkpoint_id, timestamp)]

    def restore_state(self, state: list[Any]) -> None:
        self.ids = state


class Listening(KeyedProcessFunction, CheckpointListener):
    """Counts keys, and notes what it hears."""

    def open(self, ctx: Any) -> None:
        self.heard: list[Any] = []
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id == 13:
            raise RuntimeError("unlucky")
        self.heard.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(("aborted", checkpoint_id))


def snapshots(function: Any, *pushed: list[Any], **options: Any) -> list[HarnessSnapshot]:
    """Of as many subtasks as there are lists of elements."""
    taken = []
    for subtask, elements in enumerate(pushed):
        with OperatorHarness(
            function, parallelism=len(pushed), subtask=subtask, **options
        ) as harness:
            harness.push(*elements)
            taken.append(harness.snapshot())
    return taken


def restored(
    function: Any, taken: list[HarnessSnapshot], parallelism: int, **options: Any
) -> list[OperatorHarness]:
    return [
        OperatorHarness(function, parallelism=parallelism, subtask=i, restore_from=taken, **options)
        for i in range(parallelism)
    ]


# Operator state


@BACKENDS
def test_operator_state_goes_from_epoch_to_epoch_and_not_through_a_failed_one(backend: Any) -> None:
    with OperatorHarness(Buffering(), backend=backend) as harness:
        assert harness.operator_state("split") == []
        harness.push(1, 2)
        assert harness.operator_state("union") == [1, 2]
        assert harness.operator_state("split") == []
        harness.end_epoch()
        assert harness.operator_state("split") == [1, 2]
        with pytest.raises(UserFunctionError, match="told to"):
            harness.push(3, "fail")
        harness.end_epoch()
        assert harness.operator_state("split") == harness.operator_state("union") == [1, 2]
        assert harness.operator_state("rules") == {"last": 2}
        assert harness.function.raw == [b"1", b"2"]


def test_operator_state_that_is_not_there_is_an_error_that_says_so() -> None:
    with (
        OperatorHarness(Buffering()) as harness,
        pytest.raises(StateDescriptorError, match=r"no operator state 'n' .*'split', 'union'"),
    ):
        harness.operator_state("n")
    with (
        OperatorHarness(Count(), key=whole) as harness,
        pytest.raises(StateAccessError, match="neither a CheckpointedFunction nor"),
    ):
        harness.operator_state("n")


# Snapshots and restores


@BACKENDS
def test_another_harness_goes_on_from_a_snapshot(backend: Any) -> None:
    with OperatorHarness(Buffering(), backend=backend) as first:
        assert first.function.restored == (False, None)
        first.push(1, 2)
        taken = first.snapshot()
        assert first.function.restored == (True, None)
        first.push(99)
        first.end_epoch()
    with OperatorHarness(Buffering(), backend=backend, restore_from=taken) as second:
        assert second.function.restored == (True, 1)
        second.push(3)
        again = second.snapshot()
    assert (taken.checkpoint_id, again.checkpoint_id) == (1, 2)
    with OperatorHarness(Buffering(), backend=backend, restore_from=again) as third:
        assert third.operator_state("split") == [1, 2, 3]
        assert third.function.restored == (True, 2)


class Gathering(KeyedProcessFunction):
    """Gives out all that it has seen of a key."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", int))

    def process_element(self, value: int, ctx: Any) -> Iterator[list[int]]:
        self.seen.add(value)
        yield self.seen.get()


@BACKENDS
def test_a_list_that_goes_on_from_a_snapshot_keeps_what_it_had(backend: Any) -> None:
    options: dict[str, Any] = {"key": lambda value: "k", "backend": backend}
    [taken] = snapshots(Gathering(), [1], **options)
    with OperatorHarness(Gathering(), restore_from=taken, **options) as harness:
        harness.push(2)
        again = harness.snapshot()
    with OperatorHarness(Gathering(), restore_from=again, **options) as harness:
        harness.push(3)
        harness.end_epoch()
        harness.push(4)
        assert harness.outputs[-1] == [1, 2, 3, 4]


@BACKENDS
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_keyed_state_is_found_on_the_subtask_that_owns_the_key(
    backend: Any, parallelism: int
) -> None:
    keys = [f"key {i}" for i in range(40)]
    old = [OperatorHarness(Count(), key=whole, parallelism=2, subtask=i) for i in range(2)]
    pushed = [[key for key in keys if harness.owns(key)] for harness in old]
    assert all(pushed)
    taken = snapshots(Count(), *pushed, key=whole, backend=backend)
    new = restored(Count(), taken, parallelism, key=whole, backend=backend)
    for key in keys:
        counts = [harness.state("count", key) for harness in new]
        assert counts == [1 if harness.owns(key) else None for harness in new]
    for harness in (*old, *new):
        harness.close()


@BACKENDS
def test_operator_state_is_dealt_out_by_its_mode(backend: Any) -> None:
    taken = snapshots(Buffering(), [1, 2, 3], [4, 5], backend=backend)
    new = restored(Buffering(), taken, 3, backend=backend)
    assert [harness.operator_state("split") for harness in new] == [[1, 2], [3, 4], [5]]
    assert [harness.operator_state("union") for harness in new] == [[1, 2, 3, 4, 5]] * 3
    assert [harness.operator_state("rules")["last"] for harness in new] == [3, 5, 3]
    assert [harness.function.raw for harness in new] == [[b"1", b"2"], [b"3", b"4"], [b"5"]]
    same = restored(Buffering(), taken, 2, backend=backend)
    assert [harness.operator_state("split") for harness in same] == [[1, 2, 3], [4, 5]]
    for harness in (*new, *same):
        harness.close()


def test_a_list_checkpointed_function_gets_its_share() -> None:
    taken = snapshots(Sum(), [1, 2], [10], [100])
    [one] = restored(Sum(), taken, 1)
    one.push(1)
    assert one.outputs == [114]
    one.close()


def test_every_epoch_is_told_the_checkpoint_that_will_contain_it() -> None:
    with OperatorHarness(Ids()) as harness:
        harness.end_epoch()
        harness.clock.advance(5)
        harness.snapshot()
        harness.end_epoch()
        taken = harness.snapshot()
        assert harness.function.ids == [(1, 0), (1, 5), (2, 5), (2, 5)]
    with OperatorHarness(Ids(), restore_from=taken) as harness:
        harness.end_epoch()
        assert harness.function.ids[4:] == [(3, 0)]


def test_a_share_may_be_empty_and_is_restored_all_the_same() -> None:
    [_, second] = new = restored(Buffering(), snapshots(Buffering(), [1]), 2)
    assert second.operator_state("split") == []
    assert second.function.restored == (True, 1)
    for harness in new:
        harness.close()


def test_state_that_no_element_touched_is_in_the_next_snapshot_too() -> None:
    with OperatorHarness(Count(), key=whole) as harness:
        harness.push("a", "a")
        harness.snapshot()
        again = harness.snapshot()
    with OperatorHarness(Count(), key=whole, restore_from=again) as harness:
        assert harness.state("count", "a") == 2


def test_a_function_without_state_has_an_empty_snapshot() -> None:
    with OperatorHarness(lambda n: n + 1) as harness:
        taken = harness.snapshot()
    assert (taken.store, taken.operator_state) == (None, None)
    with OperatorHarness(lambda n: n + 1, restore_from=taken) as harness:
        harness.push(1)
        assert harness.outputs == [2]


def test_a_snapshot_pickles_and_can_be_restored_any_number_of_times() -> None:
    [taken] = snapshots(Count(), ["a"], key=whole)
    copy = pickle.loads(pickle.dumps(taken))
    assert copy == taken
    for _ in range(2):
        with OperatorHarness(Count(), key=whole, restore_from=copy) as harness:
            harness.push("a")
            assert harness.outputs == [("a", 2)]


def test_a_snapshot_settles_outputs_and_an_epoch_that_fails_leaves_it_alone() -> None:
    with OperatorHarness(Count(), key=whole) as harness:
        harness.push("a")
        harness.snapshot()
        harness.push("a")
        harness.fail()
        assert harness.outputs == [("a", 1)]
        assert harness.state("count", "a") == 1


# What is refused


def test_snapshots_that_are_not_of_every_subtask_once_are_refused() -> None:
    first, second = snapshots(Buffering(), [1], [2])
    for given, said in [
        ([first], r"subtasks \[0\] of 2"),
        ([first, first], r"subtasks \[0, 0\] of 2"),
        ([first, second, second], r"subtasks \[0, 1, 1\] of 2"),
        ([], "no snapshot"),
        ([first, *snapshots(Buffering(), [1])], r"differ in their parallelism \(1, 2\)"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            OperatorHarness(Buffering(), restore_from=given)


def test_more_subtasks_than_key_groups_are_refused() -> None:
    taken = snapshots(Buffering(), [1])
    with pytest.raises(ConfigurationError, match="128"):
        OperatorHarness(Buffering(), parallelism=200, restore_from=taken)


# Notifications


def test_notifications_reach_the_function_at_work() -> None:
    with OperatorHarness(Listening(), key=whole) as harness:
        harness.notify_checkpoint_complete(3)
        harness.notify_checkpoint_aborted(4)
        assert harness.function.heard == [("complete", 3), ("aborted", 4)]


def test_a_listener_that_raises_fails_the_epoch_and_is_named() -> None:
    with OperatorHarness(Listening(), key=whole) as harness:
        harness.push("a")
        with pytest.raises(UserFunctionError, match=r"'Listening' .* notification .*unlucky"):
            harness.notify_checkpoint_complete(13)
        assert harness.state("count", "a") is None


def test_a_function_that_does_not_listen_cannot_be_told() -> None:
    with (
        OperatorHarness(Count(), key=whole) as harness,
        pytest.raises(JobGraphError, match="Count hears of no checkpoints"),
    ):
        harness.notify_checkpoint_complete(1)


class Reminder(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value)
        ctx.timer_service().register_processing_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield timestamp, ctx.time_domain().value


@BACKENDS
def test_timers_are_in_a_snapshot_though_no_element_touched_them(backend: Any) -> None:
    with OperatorHarness(Reminder(), key=whole, backend=backend) as harness:
        harness.push(5)
        harness.end_epoch()
        harness.snapshot()
        snapshot = harness.snapshot()
        harness.advance_watermark(9)
        harness.set_processing_time(9)
        gone = harness.snapshot()
    for point, expected in ((snapshot, [(5, "event time"), (5, "processing time")]), (gone, [])):
        with OperatorHarness(Reminder(), key=whole, backend=backend, restore_from=point) as harness:
            harness.advance_watermark(9)
            harness.set_processing_time(9)
            assert harness.outputs == expected
