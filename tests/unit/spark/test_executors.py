"""Noticing that an executor is gone, though looking may fail."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JNetworkError

from holdfast.spark.placement.executors import ExecutorWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 30
SOON = 0.01


class Cluster:
    """What the watch sees of Spark; every look can fail."""

    def __init__(self) -> None:
        self.present = ["a:1", "b:2"]
        self.error: Exception | None = None
        self.stopped = False
        self.looks = 0
        self.looked = threading.Event()
        self._jsc: Any = self
        self.sparkContext = self

    def sc(self) -> Any:
        return self

    statusTracker = sc

    def isStopped(self) -> bool:
        return self.stopped

    def getExecutorInfos(self) -> list[Any]:
        self.looks += 1
        self.looked.set()
        if self.error is not None:
            raise self.error
        return [
            SimpleNamespace(host=lambda name=name: name[0], port=lambda name=name: name[2])
            for name in self.present
        ]

    def wait_for_looks(self, number: int) -> None:
        for _ in range(number):
            self.looked.clear()
            assert self.looked.wait(WAIT)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def losses() -> list[BaseException]:
    return []


@pytest.fixture
def watch(cluster: Cluster, losses: list[BaseException]) -> Iterator[ExecutorWatch]:
    pinning: Any = SimpleNamespace(local=False)
    made = ExecutorWatch(cluster, pinning, losses.append, look_every=SOON)  # type: ignore[arg-type]
    made.note()
    yield made
    made.stop()


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "watching executors" in one.name]


def test_an_executor_that_is_gone_is_told_once(
    cluster: Cluster, watch: ExecutorWatch, losses: list[BaseException]
) -> None:
    cluster.present = ["a:1"]
    cluster.wait_for_looks(3)
    [loss] = losses
    assert "executor b:2 is gone" in str(loss)


def test_the_watch_goes_on_after_an_error(
    cluster: Cluster,
    watch: ExecutorWatch,
    losses: list[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.error = Py4JNetworkError("Answer from Java side is empty")
    cluster.wait_for_looks(3)
    cluster.error = None
    cluster.present = ["b:2"]
    cluster.wait_for_looks(3)
    assert len(losses) == 1
    [record] = caplog.records
    assert "Answer from Java side is empty" in record.getMessage()


def test_the_watch_goes_on_after_a_loss_that_nobody_could_be_told_of(cluster: Cluster) -> None:
    told = []

    def tell(loss: BaseException) -> None:
        told.append(loss)
        raise LookupError("nobody there")

    pinning: Any = SimpleNamespace(local=False)
    watch = ExecutorWatch(cluster, pinning, tell, look_every=SOON)  # type: ignore[arg-type]
    watch.note()
    cluster.present = ["a:1"]
    cluster.wait_for_looks(3)
    watch.note()
    cluster.present = []
    cluster.wait_for_looks(3)
    assert len(told) == 2
    watch.stop()


def test_the_watch_ends_with_the_session(cluster: Cluster, watch: ExecutorWatch) -> None:
    cluster.wait_for_looks(1)
    [thread] = threads()
    cluster.stopped = True
    thread.join(WAIT)
    assert not thread.is_alive()


def test_nothing_is_watched_where_all_runs_on_the_driver(cluster: Cluster) -> None:
    pinning: Any = SimpleNamespace(local=True)
    ExecutorWatch(cluster, pinning, lambda loss: None, look_every=SOON)  # type: ignore[arg-type]
    assert threads() == []
