"""A savepoint held against programs: what a start would do, told before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    Duration,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessJoinFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.checkpoint.files.metadata import (
    Committable,
    OperatorSnapshot,
    SourceSnapshot,
    StoreSnapshot,
)
from holdfast.checkpoint.savepoint.comparison import ALLOWED, compare, fitting_limits
from holdfast.checkpoint.savepoint.state_comparison import BUILT_IN
from holdfast.errors import ConfigurationError
from holdfast.functions import ListCheckpointed
from holdfast.job.compiler import compile_job
from holdfast.job.declared_states import declared_states
from holdfast.job.model import FileLog, SourcePosition
from holdfast.runtime.operators.element import state_spec
from holdfast.serde.factory import codec_for
from holdfast.spark.sources.source import Source
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.schemas import as_stored
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import inline
from holdfast.testing.harness import OperatorHarness
from holdfast.testing.windows import window_joined, windowed
from holdfast.types.stream_type import StreamType
from holdfast.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.support.checkpoints import checkpoint
from tests.support.functions import plus
from tests.support.programs import Program

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.savepoint.comparison import OperatorComparison
    from holdfast.checkpoint.savepoint.state_comparison import StateComparison
    from holdfast.savepoints import SavepointComparison

ROWS = "k string, n bigint"
READ = SourcePosition("7")
TTL = StateTtlConfig.new_builder(Duration.of_hours(1)).build()


@dataclass
class Asks(KeyedProcessFunction):
    """Asks for the states that it is told."""

    descriptors: tuple[Any, ...] = ()

    def open(self, ctx: Any) -> None:
        methods = {
            "value": ctx.get_state,
            "list": ctx.get_list_state,
            "map": ctx.get_map_state,
            "reducing": ctx.get_reducing_state,
        }
        for descriptor in self.descriptors:
            methods[descriptor.kind](descriptor)

    def process_element(self, value: Any, ctx: Any) -> None:
        return None


def stored(descriptor: Any, **more: Any) -> dict[str, Any]:
    """What metadata says of a state that was declared so."""
    types = (
        [descriptor.value_type, descriptor.key_type]
        if descriptor.kind == "map"
        else [descriptor.type]
    )
    schema = as_stored([codec_for(spec).schema for spec in types])
    timed = {"ttl": True} if descriptor.time_to_live is not None else {}
    return {"name": descriptor.name, "kind": descriptor.kind, "schema": schema} | timed | more


def own_state(mode: Any, descriptor: Any, *values: Any) -> NamedState:
    codec = codec_for(descriptor.type)
    return NamedState(
        descriptor.name, mode, as_stored([codec.schema]), [codec.encode(value) for value in values]
    )


def savepoint(
    *states: dict[str, Any],
    uid: str = "op",
    parallelism: int = 2,
    max_parallelism: int = 128,
    own: tuple[NamedState, ...] = (),
    position: SourcePosition = READ,
    **changes: Any,
) -> CheckpointMetadata:
    """A savepoint of one operator behind the source "in"."""
    store = StoreSnapshot(
        subtask=0,
        backend="canonical",
        version="7-a",
        key_groups=(0, 63),
        files={},
        full_size=0,
        uploaded_size=0,
        operator_state=inline(OperatorStateSnapshot(list(own)).encode()) if own else None,
    )
    operator = OperatorSnapshot(
        uid=uid,
        name="Operator",
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        states=list(states),
        key="str",
        subtasks=[store],
    )
    return msgspec.structs.replace(
        checkpoint(7),
        is_savepoint=True,
        operators=[operator],
        sources=[SourceSnapshot(uid="in", position=msgspec.to_builtins([position]))],
        spark={"offset_metadata": ""},
        **changes,
    )


def compared(
    metadata: CheckpointMetadata,
    program: Program,
    tmp_path: Path,
    *,
    allow: bool = False,
    one_pass: bool = False,
) -> SavepointComparison:
    settings = program.settings
    limits = fitting_limits(metadata, program.graph, settings.parallelism)
    plan = compile_job(program.graph, replace(settings, stored_max_parallelism=limits))
    return compare(
        "a path",
        FileSystemFiles(str(tmp_path)),
        metadata,
        program.graph,
        plan,
        max_parallelism=settings.max_parallelism,
        one_pass=one_pass,
        allow_non_restored_state=allow,
    )


def asking(*descriptors: StateDescriptor, **options: Any) -> Program:
    """A program whose one operator asks for states."""
    program = Program(**options)
    rows = program.source(ROWS).uid("in").key_by("k")
    rows.process(Asks(descriptors), ROWS).uid("op").name("Operator")
    return program


def operator_of(
    program: Program, metadata: CheckpointMetadata, tmp_path: Path
) -> OperatorComparison:
    return compared(metadata, program, tmp_path).operator("op")


def one_state(was: Any, now: Any, tmp_path: Path) -> tuple[StateComparison, SavepointComparison]:
    """What becomes of a state that was declared so and is declared so now."""
    found = compared(savepoint(stored(was)), asking(now), tmp_path)
    [state] = found.operator("op").states
    return state, found


COUNT = ValueStateDescriptor("count", int)


def test_an_unchanged_program_fits(tmp_path: Path) -> None:
    found = compared(savepoint(stored(COUNT)), asking(COUNT), tmp_path)
    assert found.fits
    assert found.problems == []
    assert [(one.uid, one.verdict) for one in found.sources] == [("in", "continues")]
    [operator] = found.operators
    assert (operator.uid, operator.name, operator.verdict) == ("op", "Operator", "restored")
    assert (operator.parallelism, operator.max_parallelism) == ((2, 2), (128, 128))
    assert operator.key == "str"
    [state] = operator.states
    assert (state.name, state.kind, state.verdict, state.notes) == ("count", "value", "as is", ())


@dataclass
class Old:
    price: str
    gone: int


@dataclass
class New:
    price: str
    note: str = ""


@dataclass
class Bad:
    price: int
    lines: list[int]


OLD = ValueStateDescriptor("s", Old)
INTS, NULLABLE = ValueStateDescriptor("s", int), ValueStateDescriptor("s", int | None)
TIMED = ValueStateDescriptor("s", int, ttl=TTL)
LISTS, UNTYPED = ListStateDescriptor("s", int), ListStateDescriptor("s")


@pytest.mark.parametrize(
    ("was", "now", "verdict", "notes"),
    [
        (OLD, OLD, "as is", ()),
        (OLD, ValueStateDescriptor("s", New), "after migration", ()),
        (INTS, NULLABLE, "after migration", ()),
        (UNTYPED, UNTYPED, "as is", ()),
        (INTS, TIMED, "as is", ("time to live added",)),
        (TIMED, NULLABLE, "after migration", ("time to live removed",)),
        (LISTS, INTS, "another kind", ("was list",)),
    ],
)
def test_a_state_whose_type_changes_is_told_by_what_a_start_does_with_it(
    was: Any, now: Any, verdict: str, notes: tuple[str, ...], tmp_path: Path
) -> None:
    state, found = one_state(was, now, tmp_path)
    assert (state.verdict, state.notes) == (verdict, notes)
    assert found.fits == (verdict != "another kind")


def test_what_is_incompatible_is_told_field_by_field_with_what_to_do(tmp_path: Path) -> None:
    state, found = one_state(OLD, ValueStateDescriptor("s", Bad), tmp_path)
    assert state.verdict == "incompatible"
    assert len(state.notes) == 2
    assert "price: was str, is int" in state.notes[0]
    assert "lines" in state.notes[1]
    [problem] = found.problems
    assert problem.startswith("operator 'Operator' (uid 'op'): state 's' was written with the type")
    assert all(note in problem for note in state.notes)
    assert "give the state another name" in problem
    assert not found.fits


def test_the_keys_of_a_map_cannot_change(tmp_path: Path) -> None:
    was, now = MapStateDescriptor("s", int, str), MapStateDescriptor("s", int | None, str)
    state, _ = one_state(was, now, tmp_path)
    assert state.verdict == "incompatible"
    assert state.notes[0].startswith("keys: ")


def test_values_of_all_earlier_types_are_compared(tmp_path: Path) -> None:
    earlier = {"00000001": stored(ValueStateDescriptor("s", str))["schema"]}
    metadata = savepoint(stored(ValueStateDescriptor("s", int), others=earlier))
    [state] = operator_of(asking(ValueStateDescriptor("s", int)), metadata, tmp_path).states
    assert state.verdict == "incompatible"
    both = ValueStateDescriptor("s", int | str)
    [state] = operator_of(asking(both), metadata, tmp_path).states
    assert state.verdict == "after migration"


def test_states_and_operators_come_and_go(tmp_path: Path) -> None:
    program = asking(COUNT, ListStateDescriptor("fresh", int))
    program.source(ROWS).uid("in-2").key_by("k").process(Asks((COUNT,)), ROWS).uid("added")
    other = ReducingStateDescriptor("other", plus, int)
    found = compared(savepoint(stored(COUNT), stored(other)), program, tmp_path)
    assert [(state.name, state.kind, state.verdict) for state in found.operator("op").states] == [
        ("count", "value", "as is"),
        ("other", "reducing", "not declared now, kept"),
        ("fresh", "list", "new, starts empty"),
    ]
    added = found.operator("added")
    assert (added.verdict, added.parallelism) == ("new, starts empty", (None, 2))
    assert [state.verdict for state in added.states] == ["new, starts empty"]
    assert [source.verdict for source in found.sources] == ["continues", "new, from its beginning"]
    assert found.fits
    with pytest.raises(KeyError, match="nobody"):
        found.operator("nobody")


def test_what_the_program_does_not_claim_is_a_problem_that_can_be_allowed(tmp_path: Path) -> None:
    program = Program()
    program.source(ROWS).uid("renamed").key_by("k").process(Asks((COUNT,)), ROWS).uid("renamed-op")
    waiting = Committable(uid="sink", checkpoint_id=7, epoch=1, subtask=0)
    metadata = savepoint(stored(COUNT), committables=[waiting])
    found = compared(metadata, program, tmp_path)
    assert [one.verdict for one in found.operators] == ["not in the program", "new, starts empty"]
    assert [one.verdict for one in found.sources] == [
        "not in the program",
        "new, from its beginning",
    ]
    assert not found.fits
    for problem, word in zip(found.problems, ["'sink'", "(uid 'op')", "'in'"], strict=True):
        assert word in problem
        assert problem.endswith(ALLOWED)
    allowed = compared(metadata, program, tmp_path, allow=True)
    assert allowed.fits
    assert allowed.problems == []
    assert len(allowed.restore_problems) == 3


def test_a_set_max_parallelism_must_be_the_stored_one(tmp_path: Path) -> None:
    metadata = savepoint(stored(COUNT), max_parallelism=16)
    program = asking(COUNT, max_parallelism=32)
    found = compared(metadata, program, tmp_path, allow=True)
    assert found.operator("op").max_parallelism == (16, 32)
    [problem] = found.problems
    assert "max parallelism mismatch" in problem
    assert "set_max_parallelism(16)" in problem
    assert "rewrite_max_parallelism" in problem
    assert compared(metadata, asking(COUNT, max_parallelism=16), tmp_path).fits
    own = asking(COUNT)
    own.graph.nodes[-1].max_parallelism = 64
    assert not compared(metadata, own, tmp_path).fits


def test_a_max_parallelism_that_is_not_set_is_taken_over_as_far_as_the_parallelism_allows(
    tmp_path: Path,
) -> None:
    metadata = savepoint(stored(COUNT), max_parallelism=4)
    fitting = compared(metadata, asking(COUNT, parallelism=4), tmp_path)
    assert fitting.fits
    assert fitting.operator("op").max_parallelism == (4, 4)
    exceeding = compared(metadata, asking(COUNT, parallelism=5), tmp_path)
    [problem] = exceeding.problems
    assert "'Operator'" in problem
    assert "parallelism 5 is above max parallelism 4" in problem
    # Without the savepoint the program is all right; one that is not says so by itself.
    with pytest.raises(ConfigurationError, match="parallelism 5 is above max parallelism 4"):
        compared(metadata, asking(COUNT, parallelism=5, max_parallelism=4), tmp_path)


class Breaks(Asks):
    def open(self, ctx: Any) -> None:
        super().open(ctx)
        raise ConnectionError("no database on the driver")


def test_states_that_a_failing_open_does_not_ask_for_are_not_compared(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS).uid("in").key_by("k")
    rows.process(Breaks((COUNT,)), ROWS).uid("op")
    metadata = savepoint(stored(COUNT), stored(ValueStateDescriptor("later", int)))
    operator = operator_of(program, metadata, tmp_path)
    assert operator.not_compared == "open() raised ConnectionError: no database on the driver"
    assert [state.verdict for state in operator.states] == ["as is", "not compared"]


class Sums(ProcessWindowFunction):
    def open(self, ctx: Any) -> None:
        ctx.get_state(COUNT)

    def process(self, key: Any, context: Any, elements: Any) -> list[Any]:
        return []


class Ones(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def nothing(*_: Any) -> list[Any]:
    return []


def first(one: Any, _: Any) -> Any:
    return one


TEN = TumblingEventTimeWindows.of(10)
BY_CLOCK = TumblingProcessingTimeWindows.of(10)
SESSIONS = EventTimeSessionWindows.with_gap(10)
OTHER_ROWS = "k string, n bigint, note string"


def windows(assigner: Any = TEN, rows: str = ROWS, *, keyed: bool = True) -> Any:
    return windowed(assigner, keyed=keyed, type=rows)


def joined(*, grouped: bool = False) -> Any:
    return window_joined(TEN, grouped=grouped, types=(ROWS, OTHER_ROWS))


WINDOWS: dict[str, Any] = {
    "reduce": windows().reduce(first),
    "reduce, then process": windows().reduce(first, Sums(), ROWS),
    "aggregate": windows().aggregate(Ones(), accumulator_type=int, output_type=int),
    "aggregate without a type": windows().aggregate(Ones(), output_type=int),
    "apply": windows().apply(nothing, ROWS),
    "process": windows().process(Sums(), ROWS),
    "evictor": windows().evictor(CountEvictor.of(3)).apply(nothing, ROWS),
    "evictor and reduce": windows().evictor(CountEvictor.of(3)).reduce(first),
    "sessions": windows(SESSIONS).reduce(first),
    "sessions with lateness": windows(SESSIONS).allowed_lateness(5).apply(nothing, ROWS),
    "lateness": windows().allowed_lateness(5).reduce(first),
    "by the clock": windows(BY_CLOCK).reduce(first),
    "all elements": windows(keyed=False).reduce(first),
    "join": joined().apply(lambda a, b: a, ROWS),
    "co-group": joined(grouped=True).apply(nothing, ROWS),
}


@pytest.mark.parametrize("made", WINDOWS)
def test_windows_declare_what_they_register_when_they_run(made: str) -> None:
    key = None if made == "all elements" else str
    with OperatorHarness(WINDOWS[made], key=key) as harness:
        operator_task = harness._operator_task
        real = operator_task.open_state().state_descriptions()
        declared = declared_states(operator_task.plan, {})
    found = [stored(descriptor) for descriptor in declared.keyed.values()]
    assert sorted(found, key=str) == sorted(real, key=str)
    assert "window-contents" in declared.built_in


def windowing(stream: Any, **options: Any) -> Program:
    """A program whose one operator is what the function makes of a keyed stream with times."""
    program = Program(**options)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    timed = program.source(ROWS).uid("in").assign_timestamps_and_watermarks(strategy)
    stream(timed.key_by("k").window(TEN)).uid("op").name("Operator")
    return program


LISTED = ListStateDescriptor("window-contents", state_spec(StreamType.of(ROWS)))
FOLDED = ReducingStateDescriptor("window-contents", plus, state_spec(StreamType.of(ROWS)))
LESS = ListStateDescriptor("window-contents", state_spec(StreamType.of("n bigint")))
TEXT = ListStateDescriptor("window-contents", state_spec(StreamType.of("k bigint, n bigint")))


@pytest.mark.parametrize(
    ("was", "now", "verdict", "text"),
    [
        (LISTED, lambda w: w.apply(nothing, ROWS), "as is", None),
        (LESS, lambda w: w.apply(nothing, ROWS), "after migration", None),
        (
            TEXT,
            lambda w: w.apply(nothing, ROWS),
            "incompatible",
            "struct.k: was int64 | None, is string",
        ),
        (FOLDED, lambda w: w.reduce(first), "as is", None),
        (
            FOLDED,
            lambda w: w.apply(nothing, ROWS),
            "another kind",
            "is now declared as a list state",
        ),
        (LISTED, lambda w: w.reduce(first), "another kind", "is now declared as a reducing state"),
        (
            FOLDED,
            lambda w: w.aggregate(Ones(), accumulator_type=int, output_type=int),
            "another kind",
            "is now declared as an aggregating state",
        ),
        (
            LISTED,
            lambda w: w.evictor(CountEvictor.of(3)).apply(nothing, ROWS),
            "incompatible",
            "window-contents",
        ),
    ],
)
def test_the_contents_of_windows_are_compared(
    was: Any, now: Any, verdict: str, text: str | None, tmp_path: Path
) -> None:
    found = compared(savepoint(stored(was)), windowing(now), tmp_path)
    operator = found.operator("op")
    assert operator.not_compared is None
    [state] = operator.states
    assert state.verdict == verdict
    assert found.fits == (text is None)
    for problem in found.problems:
        assert str(text) in problem
        assert problem.endswith(BUILT_IN)


def test_windows_that_merge_do_not_take_over_those_that_did_not(tmp_path: Path) -> None:
    tumbling, merging = windowing(lambda w: w.reduce(first)), Program()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    timed = merging.source(ROWS).uid("in").assign_timestamps_and_watermarks(strategy)
    timed.key_by("k").window(SESSIONS).reduce(first).uid("op")
    windows_of = stored(ValueStateDescriptor("merging-window-set", tuple[tuple[bytes, bytes], ...]))
    for program, states, problem in (
        (tumbling, [stored(FOLDED)], None),
        (merging, [stored(FOLDED)], "in its state do not merge, and those of the program do,"),
        (merging, [stored(FOLDED), windows_of], None),
        (tumbling, [stored(FOLDED), windows_of], "in its state merge, and those of the program do"),
    ):
        found = compared(savepoint(*states), program, tmp_path, allow=True)
        contents = found.operator("op").states[0]
        assert (contents.name, contents.verdict) == ("window-contents", "as is")
        assert [text for text in found.problems if problem is None or problem not in text] == []
        assert found.fits == (problem is None)


def test_what_triggers_and_window_functions_ask_for_later_is_not_compared(tmp_path: Path) -> None:
    timers = {"name": "timers:event", "kind": "timers", "schema": []}
    later = stored(ReducingStateDescriptor("later", plus, int))
    metadata = savepoint(stored(LISTED), stored(COUNT), timers, later)
    processed = operator_of(windowing(lambda w: w.process(Sums(), ROWS)), metadata, tmp_path)
    verdicts = {state.name: state.verdict for state in processed.states}
    assert verdicts == {
        "window-contents": "as is",
        "count": "as is",
        "timers:event": "as is",
        "later": "not compared",
    }
    assert processed.not_compared is not None
    assert "process() may request" in processed.not_compared
    counting = windowing(lambda w: w.trigger(CountTrigger.of(3)).apply(nothing, ROWS))
    assert "CountTrigger may request" in str(operator_of(counting, metadata, tmp_path).not_compared)
    applied = windowing(lambda w: w.apply(nothing, ROWS))
    left = {state.name: state.verdict for state in operator_of(applied, metadata, tmp_path).states}
    assert left["later"] == left["count"] == "not declared now, kept"


def test_keys_are_compared_and_windows_over_all_elements_have_one(tmp_path: Path) -> None:
    metadata = savepoint(stored(COUNT))
    fitting = compared(metadata, asking(COUNT), tmp_path)
    keys = fitting.operator("op").key_comparison
    assert keys is not None
    assert keys.verdict == "as is"
    program = Program()
    program.source(ROWS).uid("in").key_by("n").process(Asks((COUNT,)), ROWS).uid("op")
    found = compared(metadata, program, tmp_path, allow=True)
    [problem] = found.problems
    assert "(uid 'op'): the key is an int, but the stored state of this operator has str" in problem
    assert "str, incompatible: is int" in str(found)
    # No row of it would be looked at by its key.
    program.graph.nodes[-1].function = Asks()
    assert compared(metadata, program, tmp_path).fits
    every = Program()
    every.source(ROWS).uid("in").window_all(BY_CLOCK).apply(nothing, ROWS).uid("op")
    [only] = metadata.operators
    one_key = msgspec.structs.replace(only, key="int", max_parallelism=1, states=[])
    metadata = msgspec.structs.replace(metadata, operators=[one_key])
    keys = compared(metadata, every, tmp_path).operator("op").key_comparison
    assert keys is not None
    assert keys.verdict == "as is"


class Joins(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> list[Any]:
        return []


def test_reductions_and_interval_joins_declare_their_states(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS).uid("in")
    rows.key_by("k").reduce(lambda a, b: a).uid("op")
    reduced = ValueStateDescriptor("reduced", state_spec(rows.type))
    [state] = operator_of(program, savepoint(stored(reduced)), tmp_path).states
    assert state.verdict == "as is"
    [state] = operator_of(program, savepoint(stored(replace(reduced, type=int))), tmp_path).states
    assert state.verdict == "incompatible"
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    left, right = (
        program.source(ROWS).assign_timestamps_and_watermarks(strategy).key_by("k") for _ in "12"
    )
    second = Duration.of_seconds(1)
    left.interval_join(right).between(second, second).process(Joins(), ROWS).uid("join")
    joined = MapStateDescriptor("join:left", bytes, state_spec(rows.type))
    operator = compared(savepoint(stored(joined), uid="join"), program, tmp_path).operator("join")
    assert [(state.name, state.verdict) for state in operator.states] == [
        ("join:left", "as is"),
        ("join:right", "new, starts empty"),
    ]


SEEN = ListStateDescriptor("seen", int)
NAMES = ListStateDescriptor("names", str)


class Numbers(MapFunction, CheckpointedFunction):
    """Has a split list, and a union list; reads both as it starts."""

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.seen = sum(store.get_list_state(SEEN).get())
        self.names = sorted(store.get_union_list_state(NAMES).get())
        assert not ctx.is_restored()

    def snapshot_state(self, ctx: Any) -> None:
        return None

    def map(self, value: Any) -> Any:
        return value


class Elements(MapFunction, ListCheckpointed):
    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        return []

    def restore_state(self, state: list[Any]) -> None:
        raise AssertionError("there is nothing to be restored")

    def map(self, value: Any) -> Any:
        return value


def mapping(function: Any) -> Program:
    program = Program()
    program.source(ROWS).uid("in").rebalance().map(function, ROWS).uid("op").name("Operator")
    return program


def test_operator_state_is_compared_too(tmp_path: Path) -> None:
    gone = ListStateDescriptor("gone", int)
    own = (own_state("split", SEEN, 1), own_state("split", gone))
    operator = operator_of(mapping(Numbers()), savepoint(own=own), tmp_path)
    assert [(state.name, state.kind, state.verdict) for state in operator.states] == [
        ("seen", "split", "as is"),
        ("gone", "split", "not declared now, kept"),
        ("names", "union", "new, starts empty"),
    ]
    listed = (own_state("split", ListStateDescriptor("list-checkpointed"), 1),)
    [state] = operator_of(mapping(Elements()), savepoint(own=listed), tmp_path).states
    assert state.verdict == "as is"


def test_operator_state_of_another_type_or_mode_is_a_problem(tmp_path: Path) -> None:
    wider = own_state("split", ListStateDescriptor("seen", int | None), 1)
    found = compared(savepoint(own=(wider,)), mapping(Numbers()), tmp_path)
    state = found.operator("op").states[0]
    assert state.verdict == "incompatible"
    [problem] = found.problems
    assert "operator state 'seen' was written with the type of an earlier program" in problem
    other = own_state("union", SEEN, 1)
    found = compared(savepoint(own=(other,)), mapping(Numbers()), tmp_path)
    state = found.operator("op").states[0]
    assert (state.verdict, state.notes) == ("another kind", ("was union",))
    [problem] = found.problems
    assert "Incompatible state assignment modes" in problem


class Control(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> list[Any]:
        return []

    def process_broadcast_element(self, value: Any, ctx: Any) -> list[Any]:
        return []


def test_broadcast_state_is_declared_by_its_descriptor(tmp_path: Path) -> None:
    program = Program()
    rules = MapStateDescriptor("rules", str, int)
    control = program.source(ROWS).uid("rules").broadcast(rules)
    program.source(ROWS).uid("in").connect(control).process(Control(), ROWS).uid("op")
    schema = stored(rules)["schema"]
    own = (NamedState("rules", "broadcast", schema),)
    [state] = operator_of(program, savepoint(own=own), tmp_path).states
    assert (state.kind, state.verdict) == ("broadcast", "as is")


def test_a_static_source_goes_on_only_from_one_that_was_static_too(tmp_path: Path) -> None:
    program = asking(COUNT)
    frame: Any = None
    program.graph.nodes[0].function = Source(
        "a static DataFrame", True, lambda _: frame, None, keeps_files=True
    )
    [problem] = compared(savepoint(stored(COUNT)), program, tmp_path, allow=True).problems
    assert "source 'in' is a static DataFrame" in problem
    for path, kept in (
        ("job/taskowned/in/part-0.parquet", True),
        (f"tmp/holdfast-query-{'0a' * 16}/source-3/part-0.parquet", True),
        ("job/taskowned/other/part-0.parquet", False),
        ("data/source-3/part-0.parquet", False),
        ("data/source-3/day=3/part-0.parquet", False),
        ("job/taskowned/in/deeper/part-0.parquet", False),
    ):
        log = FileLog(-1, 0, (f'{{"path": "file:///{path}"}}',))
        static = savepoint(stored(COUNT), position=SourcePosition("0", log=log))
        assert compared(static, program, tmp_path).fits == kept, path
        [problem] = compared(static, program, tmp_path, one_pass=True).problems
        assert "reads everything in one pass" in problem


def test_operators_that_cannot_have_state_are_not_listed(tmp_path: Path) -> None:
    program = asking(COUNT)
    program.source(ROWS).uid("in-2").key_by("k").map(lambda row: row, ROWS).uid("stateless")
    found = compared(savepoint(stored(COUNT)), program, tmp_path)
    assert [operator.uid for operator in found.operators] == ["op"]


def test_the_text_shows_all_of_it_in_tables(tmp_path: Path) -> None:
    was, now = ValueStateDescriptor("order", Old), ValueStateDescriptor("order", Bad)
    metadata = savepoint(stored(was), stored(ValueStateDescriptor("a", int)))
    found = compared(metadata, asking(now, parallelism=3), tmp_path)
    head, *lines = str(found).splitlines()
    assert head == "the program does not fit"
    text = "\n".join(lines[: lines.index("") + 20])
    assert "operator  verdict   parallelism  max parallelism  key" in text
    assert "op        restored  2 -> 3       128              str, as is" in text
    assert "op.order  value  incompatible" in text
    assert "op.a      value  not declared now, kept" in text
    assert "in      continues" in text
    assert f"problem 1: {found.problems[0]}" in str(found)
    assert all(line == line.rstrip() for line in lines)
