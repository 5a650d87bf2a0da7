"""Functions with operator state: when they are called, with what, and what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CheckpointedFunction,
    CheckpointListener,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    SinkFunction,
    ValueStateDescriptor,
)
from holdfast.errors import HoldfastError, StateAccessError, StateDescriptorError, UserFunctionError
from holdfast.functions import ListCheckpointed
from holdfast.state.key_groups import key_groups
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LOG: list[Any] = []
WHO = r"operator 'worker' \(uid 'work'\), subtask 1/2, "


class Buffering(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Notes its life; calls what a test gives it in either half of a checkpoint."""

    def __init__(self, on_start: Any = None, on_end: Any = None, fails_in: str = "") -> None:
        self.on_start = on_start
        self.on_end = on_end
        self.fails_in = fails_in

    def _note(self, *what: Any) -> None:
        LOG.append(what if len(what) > 1 else what[0])
        if what[0] == self.fails_in:
            raise OSError("no disk")

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.elements = store.get_list_state(ListStateDescriptor("elements", int))
        self._note("initialize", ctx.is_restored(), ctx.get_restored_checkpoint_id())
        if self.on_start is not None:
            self.on_start(self, ctx)

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self._note("open")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note("complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._note("aborted", checkpoint_id)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self._note("element", value.n)
        self.elements.add(value.n)
        yield value

    def snapshot_state(self, ctx: Any) -> None:
        self._note("snapshot", ctx.get_checkpoint_id(), ctx.get_checkpoint_timestamp())
        if self.on_end is not None:
            self.on_end(self, ctx)

    def close(self) -> None:
        self._note("close")


def tasks(function: Any, directory: Path) -> Tasks:
    program = Program()
    stream = program.source(ROWS).key_by("k").process(function, ROWS)
    program.collect(stream.uid("work").name("worker"))
    return Tasks(program, directory)


class See:
    """Notes what a function makes of function and context; its own globals are copies."""

    def __init__(self, what: Callable[[Any, Any], Any]) -> None:
        self.what = what

    def __call__(self, function: Any, ctx: Any) -> None:
        LOG.append(self.what(function, ctx))


# The order of things


def test_state_comes_before_open_and_snapshots_before_close(tmp_path: Path) -> None:
    tasks(Buffering(), tmp_path).run(("a", 7), completed=(4,), aborted=(2, 3), next_checkpoint=5)
    assert LOG == [
        ("initialize", False, None),
        "open",
        ("aborted", 2),
        ("aborted", 3),
        ("complete", 4),
        ("element", 7),
        ("snapshot", 5, 1_000),
        "close",
    ]


def test_an_epoch_in_a_checkpoint_tells_its_id_and_when_it_was_triggered(tmp_path: Path) -> None:
    tasks(Buffering(), tmp_path).run(("a", 7), checkpoint=9, next_checkpoint=9)
    assert ("snapshot", 9, 500) in LOG


def test_a_function_is_restored_from_its_second_epoch_on(tmp_path: Path) -> None:
    work = tasks(Buffering(on_start=See(lambda f, _: list(f.elements.get()))), tmp_path)
    work.run(("a", 1), ("b", 2))
    work.run(("a", 3))
    work.run()
    starts = [LOG[i : i + 2] for i, what in enumerate(LOG) if what[:1] == ("initialize",)]
    assert starts == [
        [("initialize", False, None), []],
        [("initialize", True, None), [1, 2]],
        [("initialize", True, None), [1, 2, 3]],
    ]


def test_a_function_is_restored_after_a_recovery_though_it_has_no_state(tmp_path: Path) -> None:
    tasks(Buffering(), tmp_path).run(restored=6)
    assert LOG[0] == ("initialize", True, 6)


@pytest.mark.parametrize(
    ("fails_in", "said"),
    [
        ("initialize", r"in initialize_state\(\): OSError: no disk"),
        ("open", r"in open\(\): OSError: no disk"),
        ("complete", "in a notification of a checkpoint: OSError: no disk"),
        ("aborted", "in a notification of a checkpoint: OSError: no disk"),
        ("snapshot", r"in snapshot_state\(\): OSError: no disk"),
    ],
)
def test_what_fails_names_operator_and_place_and_leaves_the_state_as_it_was(
    tmp_path: Path, fails_in: str, said: str
) -> None:
    good = tasks(Buffering(on_start=See(lambda f, _: f.elements.get())), tmp_path)
    good.run(("a", 1))
    bad = tasks(Buffering(fails_in=fails_in), tmp_path)
    bad.expected, bad.epoch = good.expected, good.epoch
    with pytest.raises(UserFunctionError, match=WHO + said):
        bad.run(("a", 2), completed=(1,), aborted=(2,))
    good.epoch = bad.epoch
    good.run()
    assert [1] in LOG


def test_an_error_of_the_state_itself_says_where_too(tmp_path: Path) -> None:
    def twice(function: Any, ctx: Any) -> None:
        ctx.get_operator_state_store().get_union_list_state(ListStateDescriptor("elements", int))

    with pytest.raises(
        StateDescriptorError, match=WHO + r"in initialize_state\(\): Incompatible state assignment"
    ):
        tasks(Buffering(on_start=twice), tmp_path).run()


def test_a_function_that_did_not_open_is_not_asked_for_a_snapshot(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionError):
        tasks(Buffering(fails_in="initialize"), tmp_path).run(("a", 1))
    assert LOG == [("initialize", False, None)]


# Every kind of operator state


def test_every_kind_of_state_comes_back(tmp_path: Path) -> None:
    def fill(function: Any, ctx: Any) -> Any:
        store = ctx.get_operator_state_store()
        union = store.get_union_list_state(ListStateDescriptor("union", str))
        rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))
        found = list(union.get()), dict(rules.items())
        union.add("u")
        rules.put("r", 1 + (rules.get("r") or 0))
        return found

    work = tasks(Buffering(on_start=See(fill)), tmp_path)
    for _ in range(3):
        work.run()
    found = [what for what in LOG if isinstance(what[0], list)]
    assert found == [([], {}), (["u"], {"r": 1}), (["u", "u"], {"r": 2})]


def test_keyed_state_can_be_registered_with_operator_state(tmp_path: Path) -> None:
    def register(function: Any, ctx: Any) -> None:
        function.last = ctx.get_keyed_state_store().get_state(ValueStateDescriptor("last", int))

    report = tasks(Buffering(on_start=register), tmp_path).run(("a", 1), checkpoint=1)
    snapshot = report.stores["work"].snapshot
    assert snapshot is not None
    assert [state["name"] for state in snapshot.states] == ["count", "last"]


def test_raw_operator_state_comes_back_in_partitions(tmp_path: Path) -> None:
    def write(function: Any, ctx: Any) -> None:
        output = ctx.get_raw_operator_state_output()
        for part in (b"one", b"two"):
            output.start_new_partition()
            output.write(part[:1])
            output.write(part[1:])

    start = See(lambda _, ctx: ctx.get_raw_operator_state_inputs())
    work = tasks(Buffering(start, write), tmp_path)
    work.run()
    work.run()
    assert [what for what in LOG if isinstance(what, list)] == [[], [b"one", b"two"]]


def test_raw_state_that_is_not_written_again_is_gone(tmp_path: Path) -> None:
    def write(function: Any, ctx: Any) -> None:
        if ctx.get_checkpoint_id() == 1:
            ctx.get_raw_operator_state_output().write(b"data")

    start = See(lambda _, ctx: ctx.get_raw_operator_state_inputs())
    work = tasks(Buffering(start, write), tmp_path)
    for next_checkpoint in (1, 2, 3):
        work.run(next_checkpoint=next_checkpoint)
    assert [what for what in LOG if isinstance(what, list)] == [[], [b"data"], []]


def test_raw_keyed_state_comes_back_by_key_group(tmp_path: Path) -> None:
    def write(function: Any, ctx: Any) -> None:
        output = ctx.get_raw_keyed_state_output()
        for group in (5, 3):
            output.start_new_key_group(group)
            output.write(str(group).encode())

    start = See(lambda _, ctx: ctx.get_raw_keyed_state_inputs())
    work = tasks(Buffering(start, write), tmp_path)
    work.run()
    work.run()
    assert [what for what in LOG if isinstance(what, list)] == [[], [(3, b"3"), (5, b"5")]]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([("start_new_key_group", key_groups(1, 2, 128).start)], "key group 64 does not belong to"),
        ([("write", b"too early")], "call start_new_key_group before writing"),
    ],
)
def test_raw_keyed_state_is_refused_where_it_has_no_place(
    tmp_path: Path, steps: list[tuple[str, Any]], said: str
) -> None:
    def write(function: Any, ctx: Any) -> None:
        output = ctx.get_raw_keyed_state_output()
        for method, argument in steps:
            getattr(output, method)(argument)

    with pytest.raises(StateAccessError, match=WHO + rf"in snapshot_state\(\): {said}"):
        tasks(Buffering(on_end=write), tmp_path).run()


class Unkeyed(SinkFunction, CheckpointedFunction):
    """Asks for keyed state where there are no keys."""

    def __init__(self, when: str) -> None:
        self.when = when

    def initialize_state(self, ctx: Any) -> None:
        if self.when == "start":
            ctx.get_keyed_state_store().get_state(ValueStateDescriptor("n", int))

    def invoke(self, value: Any, context: Any) -> None:
        return None

    def snapshot_state(self, ctx: Any) -> None:
        if self.when == "end":
            ctx.get_raw_keyed_state_output()


@pytest.mark.parametrize("when", ["start", "end"])
def test_there_is_no_keyed_state_without_keys(tmp_path: Path, when: str) -> None:
    program = Program()
    program.source(ROWS).rebalance().add_sink(Unkeyed(when)).uid("work").name("worker")
    with pytest.raises(HoldfastError, match=WHO + "in .*'keyed stream'"):
        Tasks(program, tmp_path).run()


# The older form


class Elements(MapFunction, ListCheckpointed):
    """Keeps its elements; hands them out in the form it is given."""

    form: Any = staticmethod(lambda elements: elements)

    def __init__(self) -> None:
        self.elements: list[Any] = []

    def map(self, value: Any) -> Any:
        self.elements.append(value.n)
        return value

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> Sequence[Any]:
        LOG.append(("snapshot", checkpoint_id, timestamp))
        return self.form(self.elements)  # type: ignore[no-any-return]

    def restore_state(self, state: list[Any]) -> None:
        LOG.append(("restore", list(state)))
        self.elements = state


class Nothing(Elements):
    form = staticmethod(lambda _: None)


class Wrong(Elements):
    form = staticmethod(lambda _: 5)


class Unwilling(Elements):
    def restore_state(self, state: list[Any]) -> None:
        raise OSError("no disk")


def listed(function: Any, directory: Path) -> Tasks:
    program = Program()
    stream = program.source(ROWS).rebalance().map(function, ROWS).uid("work").name("worker")
    program.collect(stream)
    return Tasks(program, directory)


def test_a_list_is_restored_from_the_second_epoch_on(tmp_path: Path) -> None:
    work = listed(Elements(), tmp_path)
    work.run(("a", 1), ("b", 2), next_checkpoint=3)
    work.run(("a", 3), checkpoint=4, next_checkpoint=4)
    work.run()
    assert LOG == [
        ("snapshot", 3, 1_000),
        ("restore", [1, 2]),
        ("snapshot", 4, 500),
        ("restore", [1, 2, 3]),
        ("snapshot", 1, 1_000),
    ]


def test_no_list_at_all_is_an_empty_one(tmp_path: Path) -> None:
    work = listed(Nothing(), tmp_path)
    work.run(("a", 1))
    work.run()
    assert ("restore", []) in LOG


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Wrong(), r"in snapshot_state\(\): TypeError: 'int' object is not iterable"),
        (Unwilling(), r"in restore_state\(\): OSError: no disk"),
    ],
)
def test_a_list_that_fails_says_where(tmp_path: Path, function: Any, said: str) -> None:
    good = listed(Elements(), tmp_path)
    good.run(("a", 1))
    bad = listed(function, tmp_path)
    bad.expected, bad.epoch = good.expected, good.epoch
    with pytest.raises(UserFunctionError, match=WHO + said):
        bad.run(("a", 1))


# Listeners without state


class Listener(MapFunction, CheckpointListener):
    def map(self, value: Any) -> Any:
        LOG.append("element")
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        LOG.append(checkpoint_id)


def test_a_listener_is_opened_for_the_news_alone(tmp_path: Path) -> None:
    work = listed(Listener(), tmp_path)
    work.run()
    assert LOG == []
    report = work.run(completed=(1, 2), aborted=(3,))
    assert LOG == [1, 2]
    assert report.stores == {}
    work.run(("a", 1), completed=(4,))
    assert LOG == [1, 2, 4, "element"]
