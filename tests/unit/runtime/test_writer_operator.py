"""Sinks of two steps at work in their tasks: what reaches writers, and what they leave."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import OutputTag
from holdfast.api.sinks import OPENED, StagedRows
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import OutputTypeError, SinkError, UserFunctionError
from holdfast.runtime.report import OPERATOR_STATE
from holdfast.sinks import Committer, Sink, SinkWriter, WriterContext
from holdfast.state.operator.redistribution import OperatorStateSnapshot, redistribute
from holdfast.state.restore import restore_store
from holdfast.state.store.directories import claim_job, make_private, store_directory
from holdfast.state.store.process import ProcessIdentity
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.staged import CALLS, Notebook, StagedRun, calls, forget
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.runtime.report import TaskReport
    from holdfast.storage.file_system import FileSystemFiles

BIG = OutputTag("big", ROWS)
pytestmark = pytest.mark.usefixtures("no_calls")


@pytest.fixture
def start(tmp_path: Path, files: FileSystemFiles) -> Callable[[Program], StagedRun]:
    return lambda program: StagedRun(program.compile(), tmp_path / "local", FileStaging(files))


def split(value: Any) -> Iterator[Any]:
    yield value
    if value.n > 10:
        yield BIG, value


def rows(count: int) -> list[tuple[str, int]]:
    return [(f"key-{n}", n) for n in range(count)]


def everything(run: StagedRun, uid: str = "sink") -> list[Any]:
    return sorted(element for some in run.committed(uid).values() for element in some)


# What reaches the writers


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_every_element_reaches_one_writer(start: Any, by_rows: bool) -> None:
    program = Program()
    program.source(ROWS).sink_to(Notebook(rows=by_rows)).uid("sink")
    run = start(program)
    run.run(rows(10))
    assert everything(run) == rows(10)
    assert set(run.committed("sink")) == {0, 1}
    [report] = [r for r in run.reports if r.stage == 1 and r.subtask == 0]
    assert report.operators["sink"].records_in == 5


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_a_sink_chained_behind_operators_gets_what_they_give_out(start: Any, by_rows: bool) -> None:
    program = Program()
    stream = program.source(ROWS).rebalance().map(lambda e: (e.k, e.n * 2), ROWS)
    stream.filter(lambda e: e.n > 4).sink_to(Notebook(rows=by_rows)).uid("sink")
    run = start(program)
    assert len(run.plan.stages) == 1
    run.run(rows(5))
    assert everything(run) == [("key-3", 6), ("key-4", 8)]


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_a_sink_behind_a_keyed_operator_gets_its_results(start: Any, by_rows: bool) -> None:
    program = Program()
    counted = program.source(ROWS).key_by("k").process(Count(), ROWS)
    counted.sink_to(Notebook(rows=by_rows)).uid("sink")
    run = start(program)
    run.run([("a", 0), ("b", 0), ("a", 0)])
    run.run([("a", 0)])
    assert everything(run) == [("a", 3)]


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_elements_of_one_key_reach_one_writer_behind_a_key_by(start: Any, by_rows: bool) -> None:
    program = Program()
    program.source(ROWS).key_by("k").sink_to(Notebook(rows=by_rows)).uid("sink")
    run = start(program)
    run.run([(f"key-{n % 4}", n) for n in range(40)])
    keys = [{key for key, _ in some} for some in run.committed("sink").values()]
    assert sum(map(len, keys)) == 4
    assert len(everything(run)) == 40


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_a_sink_behind_a_union_gets_all_of_it(start: Any, by_rows: bool) -> None:
    program = Program()
    first, second = program.source(ROWS, "first"), program.source(ROWS, "second")
    mapped = second.rebalance().map(lambda e: (e.k, -e.n), ROWS)
    first.union(mapped).sink_to(Notebook(rows=by_rows)).uid("sink")
    run = start(program)
    run.run([("a", 1), ("b", 2)], [("c", 3)])
    assert everything(run) == [("a", 1), ("b", 2), ("c", -3)]


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
def test_a_sink_on_a_side_output_gets_that_alone(start: Any, by_rows: bool) -> None:
    program = Program()
    stream = program.source(ROWS).rebalance().flat_map(split, ROWS)
    stream.get_side_output(BIG).sink_to(Notebook(rows=by_rows)).uid("sink")
    main = program.collect(stream)
    run = start(program)
    run.run([("a", 1), ("b", 11)])
    assert everything(run) == [("b", 11)]
    assert sorted(map(tuple, main)) == [("a", 1), ("b", 11)]


def test_several_sinks_on_one_stream_get_all_of_it_each(start: Any) -> None:
    program = Program()
    stream = program.source(ROWS).rebalance().map(lambda e: e, ROWS)
    for number in range(4):
        stream.sink_to(Notebook(f"{number}", rows=number % 2 == 1)).uid(f"sink-{number}")
    run = start(program)
    run.run(rows(7))
    for number in range(4):
        assert everything(run, f"sink-{number}") == rows(7)


def test_a_sink_does_not_see_what_another_does_to_an_element(start: Any) -> None:
    program = Program()
    stream = program.source("k string, l array<bigint>").rebalance()
    stream = stream.map(lambda e: (e.k, e.l), "k string, l array<bigint>")
    stream.map(_grown, "k string, l array<bigint>").sink_to(Notebook()).uid("grown")
    stream.sink_to(Notebook()).uid("plain")
    run = start(program)
    run.run([("a", [1])])
    assert everything(run, "grown") == [("a", [1, 2])]
    assert everything(run, "plain") == [("a", [1])]


def _grown(element: Any) -> Any:
    element.l.append(2)
    return element


# What a writer is told, and when


def test_a_writer_is_told_what_it_needs_to_know(start: Any, files: FileSystemFiles) -> None:
    program = Program(parallelism=3)
    program.source(ROWS).sink_to(Notebook()).uid("sink").set_parallelism(1)
    run = start(program)
    run.run([])
    run.run(rows(1), next_checkpoint=9)
    [(_, _, subtask, context)] = calls("create")
    assert (context.job_id, context.uid, context.job_attempt) == ("job", "sink", "1-1")
    assert (context.epoch, context.checkpoint_id) == (2, 9)
    assert (subtask, context.subtask, context.parallelism) == (0, 0, 1)
    assert context.schema.names == ["k", "n"]
    assert context.exactly_once
    assert isinstance(context.staging, FileStaging)
    assert context.runtime.get_number_of_parallel_subtasks() == 1
    assert context.unique_name == f"1-1-2-0-{context.attempt_id}"


def test_without_exactly_once_a_writer_has_no_staging(start: Any, files: FileSystemFiles) -> None:
    program = Program()
    program.source(ROWS).sink_to(Notebook(opens=True)).uid("sink")
    run = start(program)
    run.run(rows(4), exactly_once=False)
    assert [context.staging for *_, context in calls("create")] == [None, None]
    assert not any(context.exactly_once for *_, context in calls("create"))
    assert files.entries(STAGED) == {}


def test_a_writer_lives_through_an_epoch_in_order(start: Any) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook()).uid("sink")
    start(program).run(rows(2))
    assert [call[0] for call in CALLS] == ["create", "write", "write", "flush", "prepare", "close"]


def test_a_writer_with_state_is_asked_for_it_after_its_output(start: Any) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook(state=True)).uid("sink")
    start(program).run([], next_checkpoint=5)
    assert [call[0] for call in CALLS] == ["create", "flush", "prepare", "snapshot", "close"]
    assert calls("snapshot") == [("snapshot", "notebook", 0, 5)]


def test_a_task_without_rows_makes_no_writer_and_stages_nothing(start: Any) -> None:
    program = Program()
    program.source(ROWS).key_by("k").sink_to(Notebook()).uid("sink")
    run = start(program)
    run.run([])
    assert (CALLS, run.prepared) == ([], [])
    run.run([("a", 1)])
    assert len(run.prepared) == len(calls("create")) == 1


def test_what_a_writer_has_opened_is_noted_before_the_first_element(
    tmp_path: Path, files: FileSystemFiles, start: Any
) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook(opens=True, fails_in="write")).uid("My Sink")
    with pytest.raises(UserFunctionError, match="no write today"):
        start(program).run(rows(1))
    [name] = files.entries(STAGED)
    [(_, _, _, context)] = calls("create")
    assert name.startswith(f"{OPENED}{context.unique_name}@My_Sink~")
    assert pickle.loads(files.read(f"{STAGED}/{name}") or b"") == context.unique_name


def test_rows_that_a_writer_stages_are_the_committable(start: Any, files: FileSystemFiles) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook(rows=True, stages=True)).uid("sink")
    run = start(program)
    run.run(rows(3))
    [(_, one)] = run.prepared
    assert isinstance(one.rows, StagedRows)
    assert (one.uid, one.data, one.rows.rows) == ("sink", b"", 3)
    staged = [row for batch in FileStaging(files).get(one.rows) for row in batch.to_pylist()]
    assert [(row["k"], row["n"]) for row in staged] == rows(3)


# What goes wrong


@pytest.mark.parametrize("by_rows", [False, True], ids=["elements", "rows"])
@pytest.mark.parametrize("place", ["write", "flush", "prepare", "snapshot"])
def test_a_writer_that_fails_is_aborted_then_closed(start: Any, place: str, by_rows: bool) -> None:
    program = Program(parallelism=1)
    sink = Notebook(fails_in=place, rows=by_rows, state=True)
    program.source(ROWS).sink_to(sink).uid("sink").name("My sink")
    run = start(program)
    with pytest.raises(UserFunctionError) as caught:
        run.run(rows(1))
    assert "operator 'My sink' (uid 'sink'), subtask 1/1" in str(caught.value)
    assert f"no {place} today" in str(caught.value)
    assert [call[0] for call in CALLS[-2:]] == ["abort", "close"]
    assert len(calls("abort", "close")) == 2


def test_the_row_that_a_writer_could_not_take_is_named(start: Any) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).key_by("k").sink_to(Notebook(fails_in="write")).uid("sink")
    with pytest.raises(UserFunctionError, match=r"(?s)key: 'a'.*row: .*n=7"):
        start(program).run([("a", 7)])


def test_a_writer_that_cannot_be_made_is_not_aborted(start: Any) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook(fails_in="create")).uid("sink")
    with pytest.raises(UserFunctionError, match=r"in create_writer\(\): OSError"):
        start(program).run(rows(1))
    assert calls("abort", "close") == []


def test_a_writer_that_cannot_be_closed_has_failed_and_is_not_closed_again(start: Any) -> None:
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Notebook(fails_in="close")).uid("sink")
    with pytest.raises(UserFunctionError, match=r"in close\(\): OSError: no close today"):
        start(program).run(rows(1))
    assert len(calls("close")) == 1


def test_a_writer_whose_abort_fails_is_closed_and_the_first_error_stays(start: Any) -> None:
    class Stubborn(Notebook):
        def create_writer(self, context: Any) -> Any:
            writer = super().create_writer(context)
            writer.abort = _stubborn  # type: ignore[method-assign]
            return writer

    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Stubborn(fails_in="flush")).uid("sink")
    with pytest.raises(UserFunctionError, match="no flush today"):
        start(program).run(rows(1))
    assert len(calls("close")) == 1


def _stubborn() -> None:
    raise OSError("cannot abort")


def test_a_failure_elsewhere_aborts_a_writer_that_is_prepared_already(start: Any) -> None:
    program = Program(parallelism=1)
    stream = program.source(ROWS)
    stream.sink_to(Notebook("first")).uid("first")
    stream.sink_to(Notebook("second", fails_in="flush")).uid("second")
    with pytest.raises(UserFunctionError, match="uid 'second'"):
        start(program).run(rows(1))
    life = [call[0] for call in CALLS if call[1] == "first"]
    assert life == ["create", "write", "flush", "prepare", "abort", "close"]


def test_an_error_of_the_sink_itself_keeps_its_kind_and_is_located(start: Any) -> None:
    class Refusing(Notebook):
        def create_writer(self, context: Any) -> Any:
            raise SinkError("the table is gone")

    program = Program(parallelism=1)
    program.source(ROWS).sink_to(Refusing()).uid("sink").name("My sink")
    with pytest.raises(SinkError, match=r"operator 'My sink' .*the table is gone"):
        start(program).run(rows(1))


def test_output_that_does_not_fit_a_rows_sink_names_the_operator_before_it(start: Any) -> None:
    program = Program(parallelism=1)
    stream = program.source(ROWS).rebalance().map(lambda e: (e.k, "no number"), ROWS)
    stream.name("mapping").sink_to(Notebook(rows=True)).uid("sink")
    with pytest.raises(OutputTypeError, match="operator 'mapping'"):
        start(program).run(rows(1))


# The writers' own state


def _stateful(parallelism: int) -> Program:
    program = Program(parallelism=parallelism, max_parallelism=8)
    program.source(ROWS).sink_to(Notebook(state=True)).uid("sink")
    return program


def restored_states() -> dict[int, list[Any]]:
    return {subtask: list(c.restored_state) for _, _, subtask, c in calls("create")}


def test_a_writers_state_comes_back_in_the_next_epoch(start: Any) -> None:
    run = start(_stateful(1))
    run.run([("a", 1)])
    run.run([("b", 2)])
    forget()
    run.run([])
    assert restored_states() == {0: [("a", 1), ("b", 2)]}


def test_the_state_of_an_epoch_that_failed_does_not_come_back(start: Any) -> None:
    run = start(_stateful(1))
    run.run([("a", 1)])
    run.plan.stages[0].operators[0].function.fails_in = "snapshot"
    with pytest.raises(UserFunctionError):
        run.run([("b", 2)])
    run.plan.stages[0].operators[0].function.fails_in = ""
    forget()
    run.run([])
    assert restored_states() == {0: [("a", 1)]}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_state_of_writers_is_dealt_out_on_another_parallelism(
    start: Any, tmp_path: Path, parallelism: int
) -> None:
    run = start(_stateful(2))
    run.run(rows(7), checkpoint=1)
    kept: list[OperatorStateSnapshot | None]
    kept = [state_of(report) for report in run.reports if report.stage == 1]
    new = redistribute(kept, parallelism, 8)
    again = start(_stateful(parallelism))
    again.epoch, again.job_attempt = run.epoch, "1-2"
    for subtask, state in enumerate(new):
        again.expected["sink", subtask] = restored(again, tmp_path, subtask, state)
    forget()
    again.run([])
    dealt = restored_states()
    assert sorted(dealt) == list(range(parallelism))
    assert sorted(one for some in dealt.values() for one in some) == rows(7)
    assert max(map(len, dealt.values())) - min(map(len, dealt.values())) <= 1


def state_of(report: TaskReport) -> OperatorStateSnapshot:
    snapshot = report.stores["sink"].snapshot
    assert snapshot is not None
    return OperatorStateSnapshot.decode((Path(snapshot.directory) / OPERATOR_STATE).read_bytes())


def restored(run: StagedRun, root: Path, subtask: int, state: OperatorStateSnapshot) -> str:
    """Build a subtask's store from operator state alone; its version."""
    local = str(root / "local")
    claim_job(local, "job", ProcessIdentity.current())
    directory = store_directory(local, "job", run.job_attempt, "sink", subtask)
    make_private(directory.parent)
    restore_store(
        run.plan.stages[0].backend,
        [],
        directory,
        version="restored",
        key_groups=range(0),
        whole=False,
        operator_state=state,
    )
    return "restored"


class Unwritten(Sink):
    """A sink whose writer has forgotten what it is for."""

    def __init__(self, takes_rows: bool) -> None:
        self.takes_rows = takes_rows

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return SinkWriter()

    def create_committer(self, runtime: Any) -> Committer:
        raise AssertionError("nothing is ever published")


@pytest.mark.parametrize(("takes_rows", "missing"), [(False, "write"), (True, "write_rows")])
def test_a_writer_without_the_method_that_is_called_says_which(
    start: Any, takes_rows: bool, missing: str
) -> None:
    program = Program()
    program.source(ROWS).sink_to(Unwritten(takes_rows)).uid("sink")
    with pytest.raises(SinkError, match=rf"uid 'sink'.*SinkWriter has no {missing}\(\)"):
        start(program).run(rows(1))
