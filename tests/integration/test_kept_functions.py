"""Functions that workers keep open between epochs, on real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    KeyedProcessFunction,
    MapFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from tests.support import hundred_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EPOCHS = 40
KEYS = 8
SUBTASKS = 4


class Logged:
    """Writes down, in a file, when it is opened and closed, and where."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.note("open")

    def close(self) -> None:
        self.note("close")

    def note(self, what: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"{what} {os.getpid()} {type(self).__name__} {self.subtask}\n")


class Doubled(Logged, MapFunction):
    """Runs at the source."""

    def map(self, value: Any) -> Any:
        return value[0] % KEYS, value[0]


class Sums(Logged, KeyedProcessFunction):
    """The sum of a key's numbers; kills its worker once, if told to."""

    def __init__(self, log: Path, kill_at: int | None = None) -> None:
        super().__init__(log)
        self.kill_at = kill_at

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[1] == self.kill_at and not os.path.exists(f"{self.log}.killed"):
            Path(f"{self.log}.killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.sum.update((self.sum.value() or 0) + value[1])
        yield value[0], self.sum.value()


def environment(spark: SparkSession, directory: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(SUBTASKS)
    env.enable_checkpointing("200 ms")
    env.configure({"execution.checkpointing.dir": str(directory / "checkpoints")})
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    return env


def notes(log: Path) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in log.read_text().splitlines())


def results(elements: list[Any]) -> dict[int, int]:
    """The last sum of every key."""
    found: dict[int, int] = {}
    for key, value in elements:
        found[key] = max(value, found.get(key, 0))
    return found


def run(env: StreamExecutionEnvironment, log: Path, kill_at: int | None = None) -> tuple[Any, Any]:
    numbers = list(range(EPOCHS * KEYS))
    env.configure({"execution.epoch.max-events": KEYS})
    stream = env.from_collection([(n,) for n in numbers], "n bigint")
    keyed = stream.map(Doubled(log), "k bigint, n bigint").uid("double").key_by("k")
    sums = keyed.process(Sums(log, kill_at), "k bigint, total bigint").uid("sums")
    with sums.execute_and_collect() as found:
        out = list(found)
        statistics = found.client.statistics()
    expected = {k: sum(n for n in numbers if n % KEYS == k) for k in range(KEYS)}
    assert results(out) == expected
    # Collected output may be repeated after a recovery.
    assert len(out) == len(numbers) or kill_at is not None
    return statistics, notes(log)


@pytest.mark.versions
def test_a_hundred_epochs_open_a_function_once_per_worker_and_subtask(
    spark: SparkSession, tmp_path: Path
) -> None:
    statistics, seen = run(environment(spark, tmp_path), tmp_path / "log")
    assert statistics.epochs >= EPOCHS
    opened = Counter({(*who,): n for (what, *who), n in seen.items() if what == "open"})
    closed = Counter({(*who,): n for (what, *who), n in seen.items() if what == "close"})
    assert set(opened.values()) == {1}
    # Two cores run two workers; tests before may have left more, which take turns.
    workers = {pid for pid, _, _ in opened}
    assert sum(1 for _, name, _ in opened if name == "Sums") <= len(workers) * SUBTASKS
    assert closed == opened, "all are closed when the job ends"
    assert statistics.operators["sums"].functions_opened == sum(
        1 for _, name, _ in opened if name == "Sums"
    )
    assert 1 <= statistics.workers.workers <= len(workers)
    assert statistics.workers.kept_tasks >= SUBTASKS
    assert statistics.workers.max_memory > 10 << 20


@pytest.mark.slow
def test_two_workers_open_the_functions_of_four_subtasks_eight_times_at_most(
    tmp_path: Path,
) -> None:
    """In a session of its own, which has no other workers."""
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hundred_epochs", str(log)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    assert int(done.stdout) >= hundred_epochs.EPOCHS
    opened = log.read_text().splitlines()
    assert len({line.split()[0] for line in opened}) <= 2
    assert len(opened) == len(set(opened)) <= 2 * hundred_epochs.SUBTASKS


@pytest.mark.versions
def test_a_killed_worker_changes_no_result(spark: SparkSession, tmp_path: Path) -> None:
    statistics, seen = run(environment(spark, tmp_path), tmp_path / "log", EPOCHS * KEYS // 2)
    assert statistics.restarts == 1
    opened = Counter(tuple(who) for what, *who in seen.elements() if what == "open")
    assert max(opened.values()) > 1, "each attempt of the job opens functions of its own"


class Model(KeyedProcessFunction):
    """Holds a large attribute, as a model that is loaded in open()."""

    def open(self, ctx: Any) -> None:
        self.model = b"x" * (200 << 20)
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], self.count.value()


@pytest.mark.parametrize(
    ("most", "kept"), [("0 b", False), pytest.param("4 gb", True, marks=pytest.mark.slow)]
)
def test_memory_decides_whether_functions_stay_open(
    spark: SparkSession, tmp_path: Path, most: str, kept: bool
) -> None:
    env = environment(spark, tmp_path)
    env.configure({"task.kept-memory.max": most, "execution.epoch.max-events": KEYS})
    numbers = [(n % KEYS,) for n in range(10 * KEYS)]
    counts = env.from_collection(numbers, "k bigint").key_by("k")
    with counts.process(Model(), "k bigint, n bigint").uid("m").execute_and_collect() as found:
        assert results(list(found)) == dict.fromkeys(range(KEYS), 10)
        statistics = found.client.statistics()
    assert (statistics.operators["m"].functions_opened < 20) is kept
    assert (statistics.workers.kept_tasks > 0) is kept
    assert (statistics.workers.max_memory > 200 << 20) is kept
