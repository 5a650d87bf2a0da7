"""Sinks with two steps in the harness; max parallelism; snapshots of the other backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.errors import ConfigurationError, JobGraphError, SinkError
from holdfast.sinks import Committer, Sink, SinkWriter, TwoPhaseCommitSinkFunction
from holdfast.testing import OperatorHarness
from tests.support.functions import Count

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE: dict[str, list[int]] = {}
LOG: list[str] = []
BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]


@pytest.fixture(autouse=True)
def empty() -> None:
    TABLE.clear()
    LOG.clear()


class ToTable(TwoPhaseCommitSinkFunction):
    """Writes numbers into a table that is visible after the commit."""

    def begin_transaction(self) -> str:
        name = f"t{len(TABLE)}"
        TABLE[name] = []
        return name

    def invoke(self, transaction: str, value: Any, context: Any) -> None:
        TABLE[transaction].append(value)

    def pre_commit(self, transaction: str) -> None:
        LOG.append(f"pre-commit {transaction}")

    def commit(self, transaction: str) -> None:
        LOG.append(f"commit {transaction}")

    def recover_and_commit(self, transaction: str) -> None:
        LOG.append(f"recover and commit {transaction}")

    def abort(self, transaction: str) -> None:
        LOG.append(f"abort {transaction}")

    def recover_and_abort(self, transaction: str) -> None:
        LOG.append(f"recover and abort {transaction}")


def test_transactions_are_prepared_with_their_epoch_and_then_committed() -> None:
    with OperatorHarness(ToTable()) as harness:
        harness.push(1, 2)
        assert harness.committables == []
        harness.end_epoch()
        harness.push(3)
        harness.end_epoch()
        assert harness.committables == ["t0", "t1"]
        assert LOG == ["pre-commit t0", "pre-commit t1"]
        harness.commit()
        assert harness.committables == []
        assert LOG[2:] == ["commit t0", "commit t1"]
        assert TABLE["t0"] == [1, 2]


def test_an_epoch_that_fails_aborts_its_transaction() -> None:
    with OperatorHarness(ToTable()) as harness:
        harness.push(1)
        harness.fail()
        assert LOG == ["abort t0"]
        harness.push(2)
        # As if the process had died: the writer cannot abort.
        harness.abort()
        assert LOG == ["abort t0", "recover and abort t1"]
        assert harness.committables == []


def test_what_was_not_committed_is_committed_after_a_recovery() -> None:
    with OperatorHarness(ToTable()) as harness:
        harness.push(1)
        taken = harness.snapshot()
        assert harness.committables == ["t0"]
    with OperatorHarness(ToTable(), restore_from=taken) as harness:
        assert harness.committables == ["t0"]
        harness.commit()
        assert LOG[-1] == "recover and commit t0"


class Refuses(Sink):
    """Publishes even numbers, retries others once, and fails on negative ones."""

    committable_type = int

    def create_writer(self, context: Any) -> SinkWriter:
        return Keeps()

    def create_committer(self, runtime: Any) -> Committer:
        return Picky()


class Keeps(SinkWriter):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def write(self, element: Any, context: Any) -> None:
        self.numbers.append(element)

    def prepare_commit(self) -> Sequence[int]:
        return self.numbers


class Picky(Committer):
    def commit(self, requests: Sequence[Any]) -> None:
        for request in requests:
            if request.committable < 0:
                request.signal_failed_with_unknown_reason(ValueError("negative"))
            elif request.committable % 2 and not request.retries:
                request.retry_later()
            else:
                LOG.append(f"published {request.committable}")


def test_what_the_committer_retries_stays_and_a_failure_is_raised() -> None:
    with OperatorHarness(Refuses()) as harness:
        harness.push(1, 2)
        harness.end_epoch()
        harness.commit()
        assert (LOG, harness.committables) == (["published 2"], [1])
        harness.commit()
        assert (LOG[1:], harness.committables) == (["published 1"], [])
        harness.push(-1)
        harness.end_epoch()
        with pytest.raises(SinkError, match=r"could not publish -1: negative"):
            harness.commit()


def test_other_functions_have_no_committer() -> None:
    with OperatorHarness(Count(), key=lambda e: e) as harness:
        assert harness.committables == []
        with pytest.raises(JobGraphError, match="Count has no committer; call fail"):
            harness.abort()


@pytest.mark.parametrize("first", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("second", BACKENDS, ids=lambda backend: backend.name)
def test_a_snapshot_is_restored_on_any_backend(first: Any, second: Any) -> None:
    with OperatorHarness(Count(), key=lambda e: e, backend=first) as harness:
        harness.push("a", "b", "a")
        taken = harness.snapshot()
    with OperatorHarness(Count(), key=lambda e: e, backend=second, restore_from=taken) as harness:
        harness.push("a")
        assert harness.outputs == [("a", 3)]


def test_the_max_parallelism_can_be_set_and_is_that_of_the_snapshots() -> None:
    with OperatorHarness(
        Count(), key=lambda e: e, parallelism=2, max_parallelism=4, subtask=1
    ) as harness:
        assert harness._plan(Count(), None).max_parallelism == 4
    with pytest.raises(ConfigurationError, match="parallelism 3 is above max parallelism 2"):
        OperatorHarness(Count(), key=lambda e: e, parallelism=3, max_parallelism=2)
    with OperatorHarness(Count(), key=lambda e: e, max_parallelism=4) as harness:
        harness.push("a")
        taken = harness.snapshot()
    OperatorHarness(Count(), key=lambda e: e, restore_from=taken, max_parallelism=4).close()
    with pytest.raises(ConfigurationError, match="have a max parallelism of 4, and this harness 8"):
        OperatorHarness(Count(), key=lambda e: e, restore_from=taken, max_parallelism=8)
