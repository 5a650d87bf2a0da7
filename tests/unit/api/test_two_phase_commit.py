"""Sink functions with transactions of their own: who calls what, when, and how often."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from holdfast.api.sinks import CommitRequest
from holdfast.api.two_phase_commit import TwoPhaseCommitSink
from holdfast.checkpoint.commit.committables import PendingCommittables
from holdfast.checkpoint.commit.opened_notes import OpenedNotes
from holdfast.checkpoint.commit.publisher import Publication, Publisher
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import SinkError, TypeDeclarationError, UserFunctionError
from holdfast.serde.factory import codec_for
from holdfast.sinks import TwoPhaseCommitSinkFunction
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.programs import Program
from tests.support.staged import LocalCalls, Notebook, StagedRun
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata

LOG: list[Any] = []


class Shop(TwoPhaseCommitSinkFunction):
    """Notes every call; a transaction is a name."""

    transaction_type: Any = str

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in

    def note(self, *call: Any) -> None:
        LOG.append(call)
        if self.fails_in == call[0] or self.fails_in == " ".join(map(str, call[:2])):
            raise OSError(f"no {' '.join(map(str, call))}")

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        LOG.append(("open", self.subtask))

    def begin_transaction(self) -> Any:
        begun = sum(call[0] == "begin" for call in LOG)
        self.note("begin", f"t{begun}")
        return f"t{begun}"

    def invoke(self, transaction: Any, value: Any, context: Any) -> None:
        self.note("invoke", transaction, value.n)

    def flush(self) -> None:
        self.note("flush")

    def pre_commit(self, transaction: Any) -> None:
        self.note("pre_commit", transaction)

    def commit(self, transaction: Any) -> None:
        self.note("commit", transaction)

    def abort(self, transaction: Any) -> None:
        self.note("abort", transaction)

    def close(self) -> None:
        LOG.append(("close",))


class Ticket(NamedTuple):
    """A transaction that is more than its name."""

    shop: str
    number: int


class _Numbers:
    """Turns a number into bytes."""

    def serialize(self, value: int) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes) -> int:
        return int(data)


class Recovering(Shop):
    def recover_and_commit(self, transaction: Any) -> None:
        self.note("recover_and_commit", transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        self.note("recover_and_abort", transaction)


class Desk:
    """A program whose one sink is a shop, on one subtask."""

    def __init__(self, tmp_path: Path, shop: Shop, job_attempt: str = "1-1") -> None:
        program = Program(parallelism=1)
        program.source(ROWS).add_sink(shop).uid("shop")
        self.files = FileSystemFiles(str(tmp_path / "checkpoints"))
        self.run = StagedRun(
            program.compile(), tmp_path / "local", FileStaging(self.files), job_attempt=job_attempt
        )
        self.publisher = Publisher(self.run.plan, LocalCalls())
        self.pending_committables = PendingCommittables()
        self.opened = OpenedNotes(self.files)

    def forget(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint is complete, and lists its transactions."""
        self.opened.listed([metadata])
        self.opened.drop_listed()

    def abort(self, job_attempt: str, epoch: int) -> None:
        """Abort what was left open, as seen from a job attempt whose epoch is complete."""
        self.publisher.abort_opened(self.opened, self.opened.orphans(job_attempt, epoch))

    def epoch(self, *numbers: int) -> None:
        self.run.run([("a", n) for n in numbers])
        self.pending_committables.add(self.run.epoch, self.run.reports)

    def publish(self, checkpoint_id: int, *, recovered: bool = False) -> None:
        listed = self.pending_committables.listed(self.run.epoch, checkpoint_id)
        publication = Publication("job", "lineage", FileStaging(self.files), recovered)
        self.publisher.publish(listed, publication)

    def metadata(self, epoch: int) -> CheckpointMetadata:
        """A checkpoint of everything up to an epoch."""
        return msgspec.structs.replace(
            checkpoint(1),
            job_attempt=self.run.job_attempt,
            epoch=epoch,
            committables=self.pending_committables.listed(epoch, 1),
        )

    def notes(self) -> list[str]:
        return sorted(name.partition("@")[0] for name in self.files.entries(STAGED))


def names(*calls: str) -> list[Any]:
    return [call for call in LOG if call[0] in calls]


def test_an_epoch_is_one_transaction_from_begin_to_pre_commit(tmp_path: Path) -> None:
    Desk(tmp_path, Shop()).epoch(1, 2)
    assert LOG == [
        ("open", 0),
        ("begin", "t0"),
        ("invoke", "t0", 1),
        ("invoke", "t0", 2),
        ("flush",),
        ("pre_commit", "t0"),
        ("close",),
    ]


def test_every_epoch_with_elements_has_a_transaction_of_its_own(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Shop())
    desk.epoch(1)
    desk.epoch()
    desk.epoch(2)
    assert names("begin", "pre_commit") == [
        ("begin", "t0"),
        ("pre_commit", "t0"),
        ("begin", "t1"),
        ("pre_commit", "t1"),
    ]


def test_transactions_are_committed_in_the_order_of_their_epochs(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Shop())
    for number in range(3):
        desk.epoch(number)
    LOG.clear()
    desk.publish(1)
    assert LOG == [
        ("open", 0),
        ("commit", "t0"),
        ("commit", "t1"),
        ("commit", "t2"),
        ("close",),
    ]


def test_all_are_committed_and_the_first_error_comes_at_the_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Shop("commit t1"))
    for number in range(4):
        desk.epoch(number)
    with pytest.raises(SinkError, match=r"OSError: no commit t1") as caught:
        desk.publish(7)
    assert "sink 'Sink: Shop' (uid 'shop'), subtask 0" in str(caught.value)
    assert "output of checkpoint 7" in str(caught.value)
    assert names("commit") == [("commit", f"t{n}") for n in range(4)]
    assert LOG[-1] == ("close",)


def test_of_two_errors_the_first_is_told() -> None:
    shop = Shop("commit")
    committer = TwoPhaseCommitSink(shop).create_committer(_Runtime())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no commit first"):
        committer.commit([_request("first"), _request("second")])
    assert names("commit") == [("commit", "first"), ("commit", "second")]


class _Runtime:
    def get_index_of_this_subtask(self) -> int:
        return 0


def _request(transaction: str) -> CommitRequest:
    return CommitRequest(
        transaction,
        job_id="job",
        lineage="",
        uid="shop",
        checkpoint_id=1,
        epoch=1,
        subtask=0,
        recovered=False,
    )


def test_after_a_recovery_transactions_are_committed_as_recovered(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering())
    desk.epoch(1)
    desk.publish(1, recovered=True)
    assert names("commit", "recover_and_commit") == [("recover_and_commit", "t0")]


def test_recovering_is_committing_unless_the_function_says_otherwise(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Shop())
    desk.epoch(1)
    desk.publish(1, recovered=True)
    assert names("commit") == [("commit", "t0")]


@pytest.mark.parametrize("place", ["invoke", "flush", "pre_commit"])
def test_a_transaction_of_an_epoch_that_fails_is_aborted(tmp_path: Path, place: str) -> None:
    with pytest.raises(UserFunctionError, match=f"no {place}"):
        Desk(tmp_path, Shop(place)).epoch(1)
    assert LOG[-2:] == [("abort", "t0"), ("close",)]
    assert len(names("abort", "close")) == 2


def test_a_function_that_cannot_begin_is_closed(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionError, match="no begin t0"):
        Desk(tmp_path, Shop("begin")).epoch(1)
    assert LOG == [("open", 0), ("begin", "t0"), ("close",)]


def test_without_checkpoints_it_commits_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Shop())
    desk.run.run([("a", 1)], exactly_once=False, staging=None)
    desk.pending_committables.add(1, desk.run.reports)
    desk.publish(0)
    assert names("pre_commit", "commit") == [("pre_commit", "t0"), ("commit", "t0")]
    assert desk.notes() == []


# Transactions that processes left open


def test_what_processes_left_open_is_aborted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering("invoke"))
    with pytest.raises(UserFunctionError):
        desk.epoch(1)
    LOG.clear()
    desk.abort("1-2", 0)
    assert LOG == [("open", 0), ("recover_and_abort", "t0"), ("close",)]
    assert desk.notes() == []


def test_what_the_present_job_attempt_has_open_is_left_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering())
    for number in range(3):
        desk.epoch(number)
    desk.abort("1-1", 0)
    assert names("recover_and_abort", "abort") == []
    assert len(desk.notes()) == 3


def test_what_was_published_is_no_longer_taken_for_open(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering())
    for number in range(3):
        desk.epoch(number)
    desk.forget(desk.metadata(2))
    assert [name.rsplit("-", 3)[1] for name in desk.notes()] == ["3"]
    desk.abort("1-1", 2)
    assert names("recover_and_abort", "abort") == []


def test_what_an_attempt_left_open_whose_place_another_one_took_is_aborted(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering())
    desk.epoch(1)
    [note] = desk.notes()
    lost = f"{note}0"
    desk.files.write_bytes(f"{STAGED}/{lost}@shop", codec_for(str).encode("lost"))
    desk.forget(desk.metadata(1))
    assert desk.notes() == [lost]
    desk.abort("1-1", 1)
    assert names("recover_and_abort", "abort") == [("recover_and_abort", "lost")]
    assert desk.notes() == []


def test_job_attempts_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    Desk(tmp_path, Recovering(), "1-1-ab").epoch(1)
    desk = Desk(tmp_path, Recovering(), "1-1")
    desk.abort("1-1", 0)
    assert names("recover_and_abort") == [("recover_and_abort", "t0")]


def test_what_cannot_be_aborted_stays_noted_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Desk(tmp_path, Recovering()).epoch(1)
    failing = Desk(tmp_path, Recovering("recover_and_abort"), "1-2")
    failing.abort("1-2", 0)
    assert "could not abort transactions: no recover_and_abort t0" in caplog.text
    assert len(failing.notes()) == 1
    again = Desk(tmp_path, Recovering(), "1-2")
    again.abort("1-2", 0)
    assert names("recover_and_abort") == [("recover_and_abort", "t0")] * 2
    assert again.notes() == []


def test_one_that_cannot_be_aborted_does_not_hold_up_the_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering("recover_and_abort t0"), "1-1")
    desk.epoch(1)
    desk.epoch(2)
    desk.abort("1-2", 0)
    aborted = [("recover_and_abort", "t0"), ("recover_and_abort", "t1")]
    assert sorted(names("recover_and_abort")) == aborted


# What transactions are in a checkpoint


class Unnamed(Shop):
    """A shop that does not say what its transactions are."""

    transaction_type = None

    def begin_transaction(self):
        return super().begin_transaction()


def type_of(shop: Shop) -> Any:
    return TwoPhaseCommitSink(shop).committable_type


def test_the_type_of_transactions_is_what_beginning_one_gives() -> None:
    class Numbered(Unnamed):
        def begin_transaction(self) -> Ticket:
            return Ticket("a", 1)

    assert type_of(Numbered()) is Ticket


def test_a_type_that_is_declared_comes_before_an_annotation() -> None:
    shop = Shop()
    shop.transaction_type = Ticket
    assert type_of(shop) is Ticket


def test_transactions_without_a_type_are_refused_when_the_program_is_built() -> None:
    stream = Program(parallelism=1).source(ROWS)
    with pytest.raises(TypeDeclarationError, match="Unnamed does not declare the type") as caught:
        stream.add_sink(Unnamed())
    assert "annotate what Unnamed.begin_transaction returns" in str(caught.value)
    assert "set it to typing.Any" in str(caught.value)


@pytest.mark.parametrize("annotation", [Any, object, None, "Nowhere"])
def test_an_annotation_that_says_nothing_is_none(annotation: Any) -> None:
    class Vague(Unnamed):
        def begin_transaction(self):
            return "t"

    Vague.begin_transaction.__annotations__["return"] = annotation
    with pytest.raises(TypeDeclarationError, match="Vague does not declare the type"):
        type_of(Vague())


def test_a_type_that_cannot_be_kept_is_refused_before_the_job_runs() -> None:
    shop = Shop()
    shop.transaction_type = threading.Thread
    program = Program(parallelism=1)
    program.source(ROWS).add_sink(shop).uid("shop")
    with pytest.raises(TypeDeclarationError, match="the committables of sink 'Shop'"):
        program.compile()


@pytest.mark.parametrize(
    ("declared", "transaction"),
    [
        (Ticket, Ticket("a", 7)),
        (dict[str, int], {"number": 7}),
        (_Numbers(), 7),
        ("bigint", 7),
        (Any, {7}),
    ],
)
def test_transactions_come_back_as_they_were(
    tmp_path: Path, declared: Any, transaction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Recovering()
    shop.transaction_type = declared
    desk = Desk(tmp_path, shop)
    monkeypatch.setattr(Shop, "begin_transaction", lambda self: transaction)
    desk.epoch(1)
    desk.publish(1)
    desk.abort("1-2", 0)
    assert names("commit", "recover_and_abort") == [
        ("commit", transaction),
        ("recover_and_abort", transaction),
    ]


def _spring() -> None:
    LOG.append(("sprung",))


class _Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return _spring, ()


def test_what_was_put_into_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Recovering())
    desk.epoch(1)
    [note] = desk.files.entries(STAGED)
    desk.files.delete(f"{STAGED}/{note}")
    desk.files.write_bytes(f"{STAGED}/{note}", pickle.dumps(_Trap()))
    listed = [
        msgspec.structs.replace(one, data=pickle.dumps(_Trap()))
        for one in desk.pending_committables.listed(1, 1)
    ]
    with pytest.raises(SinkError, match=r"uid 'shop'.*was written with another type"):
        desk.publisher.publish(listed, Publication("job", "lineage", FileStaging(desk.files)))
    desk.abort("1-2", 0)
    assert names("sprung", "commit", "recover_and_abort") == []


def test_what_a_sink_of_ones_own_opens_needs_a_type_too() -> None:
    sink = Notebook(opens=True)
    sink.committable_type = None  # type: ignore[assignment]
    with pytest.raises(TypeDeclarationError, match="Notebook sets notes_opened, and has no type"):
        Program().source(ROWS).sink_to(sink)


def test_a_committable_without_a_type_is_refused(tmp_path: Path) -> None:
    sink = Notebook()
    sink.committable_type = None  # type: ignore[assignment]
    program = Program(parallelism=1)
    program.source(ROWS).sink_to(sink).uid("notebook")
    run = StagedRun(program.compile(), tmp_path, FileStaging(FileSystemFiles(str(tmp_path / "c"))))
    with pytest.raises(SinkError, match=r"uid 'notebook'.*a committable of type list.*pickled"):
        run.run([("a", 1)])
