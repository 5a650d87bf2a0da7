"""Publishing what sinks have staged: in which groups, how often, and what becomes of failures."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.checkpoint.commit import publisher as module
from holdfast.checkpoint.commit.committables import staged_handle
from holdfast.checkpoint.commit.publisher import Publication, Publisher
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.metadata import ChannelState, Committable, StagedHandle
from holdfast.checkpoint.restore.assignment import assign_state
from holdfast.errors import FencedError, NotSerializableError, RestoreError, SinkError
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import inline
from tests.support.checkpoints import checkpoint
from tests.support.programs import Program
from tests.support.staged import ANSWERS, CALLS, LocalCalls, Notebook, calls
from tests.support.task_epochs import ROWS
from tests.unit.checkpoint.test_assignment import TARGET

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("no_calls")


def one(
    text: str, uid: str = "sink", *, checkpoint_id: int = 1, epoch: int = 1, subtask: int = 0
) -> Committable:
    return Committable(
        uid=uid, checkpoint_id=checkpoint_id, epoch=epoch, subtask=subtask, data=pickle.dumps(text)
    )


class Shelf:
    """A publisher for some sinks of a program."""

    def __init__(
        self, *sinks: Notebook, parallelism: int = 2, pauses: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        program = Program(parallelism=parallelism)
        stream = program.source(ROWS)
        for sink in sinks or (Notebook("sink"),):
            stream.sink_to(sink).uid(sink.label)
        self.plan = program.compile()
        self.calls = LocalCalls()
        self.publisher = Publisher(
            self.plan, self.calls, first_pause=pauses[0], longest_pause=pauses[1]
        )

    def publish(self, *committables: Committable, recovered: bool = False) -> None:
        publication = Publication("job", "lineage", None, recovered)
        self.publisher.publish(committables, publication)


def committed() -> list[Any]:
    return [call[1:] for call in calls("commit")]


def test_each_subtask_of_each_sink_has_a_committer_of_its_own() -> None:
    shelf = Shelf(Notebook("a"), Notebook("b"))
    shelf.publish(
        one("1", "a"),
        one("2", "b"),
        one("3", "a", subtask=1),
        one("4", "a", epoch=2),
        one("5", "b"),
    )
    assert CALLS == [
        ("committer", "a", 0),
        ("commit", "a", 0, 1, "1"),
        ("commit", "a", 0, 1, "4"),
        ("committer closed", "a"),
        ("committer", "b", 0),
        ("commit", "b", 0, 1, "2"),
        ("commit", "b", 0, 1, "5"),
        ("committer closed", "b"),
        ("committer", "a", 1),
        ("commit", "a", 1, 1, "3"),
        ("committer closed", "a"),
    ]


def test_an_older_checkpoints_output_goes_out_before_a_newer_ones() -> None:
    Shelf().publish(
        one("old 0", checkpoint_id=3),
        one("old 1", checkpoint_id=3, subtask=1),
        one("new 0", checkpoint_id=4, epoch=2),
    )
    assert committed() == [
        ("sink", 0, 3, "old 0"),
        ("sink", 1, 3, "old 1"),
        ("sink", 0, 4, "new 0"),
    ]


def test_a_request_says_where_its_committable_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    committer = "tests.support.staged.NotebookCommitter.commit"
    monkeypatch.setattr(committer, lambda self, requests: seen.extend(requests))
    Shelf().publish(one("x", checkpoint_id=7, epoch=12, subtask=1), recovered=True)
    [request] = seen
    assert (request.job_id, request.lineage, request.uid) == ("job", "lineage", "sink")
    assert (request.checkpoint_id, request.epoch, request.subtask) == (7, 12, 1)
    assert (request.committable, request.recovered, request.retries) == ("x", True, 0)


def test_staged_rows_can_be_read_by_the_committer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = FileStaging(FileSystemFiles(str(tmp_path)))
    program = Program()
    rows = program.source(ROWS).type.schema.empty_table().to_batches()
    staged = staging.put("rows", rows, program.source(ROWS).type.schema)
    read: list[Any] = []
    monkeypatch.setattr(
        "tests.support.staged.NotebookCommitter.commit",
        lambda self, requests: read.extend(list(request.rows()) for request in requests),
    )
    listed = replace_rows(one("x"), staged_handle(staged))
    Shelf().publisher.publish([listed], Publication("job", "lineage", staging))
    assert len(read) == 1


def replace_rows(committable: Committable, rows: StagedHandle) -> Committable:
    return Committable(
        uid=committable.uid,
        checkpoint_id=committable.checkpoint_id,
        epoch=committable.epoch,
        subtask=committable.subtask,
        rows=rows,
    )


# Failures


def test_what_fails_does_not_hold_up_the_others() -> None:
    ANSWERS.update({"a0": ["raise"], "b0": ["raise"]})
    with pytest.raises(SinkError, match=r"sink 'Sink: Notebook' \(uid 'a'\), subtask 0") as caught:
        Shelf(Notebook("a"), Notebook("b"), Notebook("c")).publish(
            one("a0", "a"),
            one("a1", "a", subtask=1),
            one("b0", "b"),
            one("c0", "c"),
            one("a0 later", "a", checkpoint_id=2, epoch=2),
        )
    assert "could not publish the output of checkpoint 1: OSError: no connection" in str(
        caught.value
    )
    assert [what for *_, what in committed()] == ["a1", "c0", "a0 later"]


def test_a_committer_is_closed_though_it_failed() -> None:
    ANSWERS["x"] = ["raise"]
    with pytest.raises(SinkError):
        Shelf().publish(one("x"))
    assert CALLS[-1] == ("committer closed", "sink")


def test_an_error_of_holdfast_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(self: Any, requests: Any) -> None:
        raise FencedError("a newer job owns the table")

    monkeypatch.setattr("tests.support.staged.NotebookCommitter.commit", fenced)
    with pytest.raises(FencedError, match=r"uid 'sink'.*checkpoint 5: a newer job owns the table"):
        Shelf().publish(one("x", checkpoint_id=5))


def test_a_failure_for_an_unknown_reason_fails_the_job() -> None:
    ANSWERS["x"] = ["fail"]
    with pytest.raises(SinkError, match="ValueError: nobody knows"):
        Shelf().publish(one("x"), one("y"))


def test_what_can_never_be_published_is_dropped_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ANSWERS["x"] = ["drop"]
    Shelf().publish(one("x", checkpoint_id=3, subtask=1), one("y", checkpoint_id=3, subtask=1))
    assert committed() == [("sink", 1, 3, "y")]
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        "sink 'Sink: Notebook' drops output of checkpoint 3, subtask 1, for good: it is malformed"
    )


def test_what_was_published_before_is_done(caplog: pytest.LogCaptureFixture) -> None:
    ANSWERS["x"] = ["already"]
    Shelf().publish(one("x"))
    assert (committed(), caplog.records) == ([], [])


# Trying again


def test_only_what_asks_for_it_is_tried_again() -> None:
    ANSWERS["x"] = ["retry", "retry"]
    Shelf().publish(one("w"), one("x"), one("y"))
    assert [what for *_, what in committed()] == ["w", "y", "x"]
    assert len(calls("committer")) == 1


def test_a_committable_is_tried_again_as_what_it_was_replaced_by() -> None:
    ANSWERS["x"] = ["second form"]
    Shelf().publish(one("x"))
    assert committed() == [("sink", 0, 1, "second form")]


def test_it_is_known_how_often_a_committable_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def thrice(self: Any, requests: Any) -> None:
        for request in requests:
            tried.append(request.retries)
            if request.retries < 2:
                request.retry_later()

    monkeypatch.setattr("tests.support.staged.NotebookCommitter.commit", thrice)
    Shelf().publish(one("x"))
    assert tried == [0, 1, 2]


def test_the_last_try_may_succeed() -> None:
    ANSWERS["x"] = ["retry"] * module.RETRIES
    Shelf().publish(one("x"))
    assert committed() == [("sink", 0, 1, "x")]


def test_tries_come_to_an_end() -> None:
    ANSWERS["x"] = ["retry"] * (module.RETRIES + 1)
    with pytest.raises(SinkError, match=f"asked for another try after {module.RETRIES} retries"):
        Shelf().publish(one("x"))
    assert ANSWERS["x"] == []


def test_what_fails_in_a_later_try_fails() -> None:
    ANSWERS["x"] = ["retry", "fail"]
    with pytest.raises(SinkError, match="nobody knows"):
        Shelf().publish(one("x"))


def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Waiting:
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    monkeypatch.setattr("holdfast.checkpoint.commit.publisher.threading.Event", Waiting)
    ANSWERS["x"] = ["retry"] * 5
    Shelf(pauses=(1.0, 5.0)).publish(one("x"))
    assert waited == [1.0, 2.0, 4.0, 5.0, 5.0]


# Other programs


def test_subtasks_beyond_the_present_parallelism_are_published_somewhere() -> None:
    shelf = Shelf(parallelism=2)
    shelf.publish(*(one(f"{n}", subtask=n) for n in range(5)))
    assert committed() == [("sink", n, 1, f"{n}") for n in range(5)]
    assert shelf.calls.places == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 2)]


def waiting(shelf: Shelf, tmp_path: Path, **held: Any) -> None:
    metadata = checkpoint(3)
    for name, value in {"operators": [], "sources": [], **held}.items():
        metadata = replace_field(metadata, name, value)
    list(assign_state(metadata, shelf.plan, TARGET, FileSystemFiles(str(tmp_path)), {}))


def replace_field(metadata: Any, name: str, value: Any) -> Any:
    from msgspec.structs import replace as changed

    return changed(metadata, **{name: value})


def test_output_of_a_sink_that_the_program_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match=r"output that no sink .*\(uid 'old'\)"):
        waiting(Shelf(), tmp_path, committables=[one("x", "old"), one("y", "sink")])
    waiting(Shelf(), tmp_path, committables=[one("y", "sink")])


def test_output_for_an_operator_that_is_no_sink_is_refused(tmp_path: Path) -> None:
    shelf = Shelf()
    program = Program()
    stream = program.source(ROWS).rebalance().map(lambda e: e, ROWS).uid("old")
    stream.sink_to(Notebook("sink")).uid("sink")
    shelf.plan = program.compile()
    with pytest.raises(RestoreError, match=r"output that no sink .*\(uid 'old'\)"):
        waiting(shelf, tmp_path, committables=[one("x", "old")])


def channel_state(uid: str, number: int = 0) -> ChannelState:
    rows = StagedHandle(handle=inline(b""), rows=1)
    return ChannelState(
        uid=uid, input=number, subtask=0, parallelism=2, max_parallelism=128, rows=rows
    )


def test_input_of_an_operator_that_the_program_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match=r"input that no operator .*\(uid 'old'\)"):
        waiting(Shelf(), tmp_path, channel_state=[channel_state("old")])
    waiting(Shelf(), tmp_path, channel_state=[channel_state("sink")])


def test_input_on_a_channel_that_the_program_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match=r"input that no operator .*\(uid 'sink'\)"):
        waiting(Shelf(), tmp_path, channel_state=[channel_state("sink", 1)])


def test_input_of_an_operator_that_is_chained_now_is_refused(tmp_path: Path) -> None:
    shelf = Shelf()
    program = Program()
    stream = program.source(ROWS).rebalance().map(lambda e: e, ROWS).uid("first")
    stream.sink_to(Notebook("sink")).uid("sink")
    shelf.plan = program.compile()
    with pytest.raises(RestoreError, match=r"input that no operator .*\(uid 'sink'\)"):
        waiting(shelf, tmp_path, channel_state=[channel_state("sink")])


def test_a_sink_that_cannot_be_shipped_is_named() -> None:
    sink = Notebook("sink")
    sink.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    with pytest.raises(NotSerializableError, match=r"sink 'Sink: Notebook' \(uid 'sink'\)"):
        Shelf(sink)


def test_no_job_cancels_what_another_publishes() -> None:
    """Jobs of one session count their checkpoints alike."""
    one, other = Shelf(Notebook("a")).publisher, Shelf(Notebook("a")).publisher
    assert one._job_group(7) == one._job_group(7)
    assert one._job_group(7) != other._job_group(7)


# Tidying up


def test_every_sink_is_let_to_clean_up_whatever_another_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Shelf(Notebook("a", fails_in="clean_up"), Notebook("b")).publisher.clean_up("job", "2-1")
    assert calls("clean_up") == [
        ("clean_up", "a", "job", "a", "2-1"),
        ("clean_up", "b", "job", "b", "2-1"),
    ]
    assert "left something behind: no connection" in caplog.text
    assert len(calls("committer closed")) == 2


def test_the_fence_is_looked_at_before_every_sink_that_cleans_up() -> None:
    looks: list[int] = []

    def check_fence() -> None:
        looks.append(len(calls("clean_up")))
        if looks == [0, 1]:
            raise FencedError("another driver has taken over")

    shelf = Shelf(Notebook("a"), Notebook("b"))
    with pytest.raises(FencedError):
        shelf.publisher.clean_up("job", "2-1", check_fence=check_fence)
    assert calls("clean_up") == [("clean_up", "a", "job", "a", "2-1")]


def test_a_program_without_sinks_has_nothing_to_publish() -> None:
    program = Program()
    program.collect(program.source(ROWS))
    publisher = Publisher(program.compile(), LocalCalls())
    assert not publisher.sinks
    assert not publisher.notes_opened
    publisher.publish([], Publication("job", "lineage", None))
    assert Shelf(Notebook("a", opens=True)).publisher.notes_opened
    assert Shelf(Notebook("a")).publisher.sinks == 1
