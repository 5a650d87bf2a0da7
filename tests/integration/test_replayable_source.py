"""Sources that users write, on real Spark: replayed after a failure, told what to forget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark import cloudpickle

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    JobStatus,
    KeyedProcessFunction,
    MapStateDescriptor,
    ReplayableSource,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from holdfast.errors import JobExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.job.model import JobExecutionResult

# Workers cannot import this module, and need its sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ELEMENTS, KEYS, SEGMENT = 1_200, 10, 100


class Reading(NamedTuple):
    number: int
    key: str


class Segments(ReplayableSource):
    """Numbers in files of a hundred, which are deleted as soon as they may be."""

    bounded = True

    def __init__(self, directory: Path, epoch: int) -> None:
        self.directory = directory
        self.epoch = epoch
        self.committed: list[Any] = []
        for start in range(0, ELEMENTS, SEGMENT):
            self.segment(start).write_text("\n".join(map(str, range(start, start + SEGMENT))))

    def segment(self, start: int) -> Path:
        return self.directory / f"{start:05d}"

    def initial_offset(self) -> dict[str, int]:
        return {"number": 0}

    def latest_offset(self, start: dict[str, int]) -> dict[str, int]:
        return {"number": min(start["number"] + self.epoch, ELEMENTS)}

    def partitions(
        self, start: dict[str, int], end: dict[str, int]
    ) -> list[tuple[dict[str, int], dict[str, int]]]:
        middle = {"number": (start["number"] + end["number"]) // 2}
        return [(start, middle), (middle, end)]

    def read(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Reading]:
        for number in range(start["number"], end["number"]):
            lines = self.segment(number // SEGMENT * SEGMENT).read_text().split("\n")
            yield Reading(int(lines[number % SEGMENT]), f"k{number % KEYS}")

    def commit(self, offset: dict[str, int]) -> None:
        self.committed.append(offset["number"])
        for start in range(0, offset["number"] - SEGMENT + 1, SEGMENT):
            self.segment(start).unlink(missing_ok=True)


class Seen(KeyedProcessFunction):
    """How often each element came; fails once, after the first segment was deleted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, ctx: Any) -> None:
        self.times = ctx.get_map_state(MapStateDescriptor("times", int, int))

    def process_element(self, value: Reading, ctx: Any) -> Iterator[tuple[str, int, int]]:
        self.times.put(value.number, (self.times.get(value.number) or 0) + 1)
        failed = self.directory / "failed"
        if not (self.directory / "00000").exists() and not failed.exists():
            failed.touch()
            raise ConnectionResetError("mid-way")
        times = [n for _, n in self.times.items()]
        yield value.key, len(times), max(times)


class Checkpointed:
    """A job with checkpoints over a source."""

    def __init__(self, env: StreamExecutionEnvironment, directory: Path, attempts: int) -> None:
        self.env = env
        self.last: dict[str, tuple[int, int]] = {}
        env.enable_checkpointing(10)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(directory))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(attempts, 10))

    def run(self, source: ReplayableSource, function: KeyedProcessFunction) -> JobExecutionResult:
        stream = self.env.add_source(source).uid("numbers").key_by("key")
        stream.process(function, "key string, n bigint, most bigint").uid("seen").foreach_batch(
            self._keep
        )
        return self.env.execute("replay")

    def _keep(self, rows: Any, epoch: int) -> None:
        for key, n, most in rows.collect():
            self.last[key] = max(self.last.get(key, (0, 0)), (n, most))


@pytest.mark.versions
@pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
def test_after_a_failure_every_element_is_in_the_state_once_and_none_was_forgotten_too_early(
    env: StreamExecutionEnvironment, tmp_path: Path, backend: Any
) -> None:
    (tmp_path / "in").mkdir()
    source = Segments(tmp_path / "in", epoch=150)
    job = Checkpointed(env.set_state_backend(backend), tmp_path / "checkpoints", attempts=1)
    result = job.run(source, Seen(tmp_path / "in"))
    assert result.statistics.restarts == 1
    assert (tmp_path / "in" / "failed").exists()
    assert job.last == {f"k{i}": (ELEMENTS // KEYS, 1) for i in range(KEYS)}
    assert source.committed == sorted(source.committed)
    assert source.committed[0] % 150 == 0
    assert result.statistics.checkpoints is not None
    assert len(source.committed) == result.statistics.checkpoints.completed


class Unwilling(Segments):
    """A source whose first commit fails."""

    def commit(self, offset: Any) -> None:
        if not (self.directory / "refused").exists():
            (self.directory / "refused").touch()
            raise PermissionError("not mine to delete")


def test_a_commit_that_fails_fails_the_job_and_not_the_checkpoint(
    env: StreamExecutionEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    job = Checkpointed(env, tmp_path / "checkpoints", attempts=1)
    result = job.run(Unwilling(tmp_path / "in", epoch=200), Seen(tmp_path / "in"))
    assert result.statistics.restarts == 1
    assert result.statistics.checkpoints is not None
    restored = result.statistics.checkpoints.latest_restored
    assert restored is not None
    assert restored.checkpoint_id >= 1
    said = "source (uid 'numbers') raised in commit(): PermissionError: not mine to delete"
    assert said in caplog.text
    assert job.last == {f"k{i}": (ELEMENTS // KEYS, 1) for i in range(KEYS)}


def test_without_checkpoints_nothing_is_forgotten(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    source = Segments(tmp_path, epoch=500)
    numbers = env.add_source(source).map(lambda r: r.number, int)
    assert sorted(numbers.execute_and_collect()) == list(range(ELEMENTS))
    assert source.committed == []
    assert source.segment(0).exists()


@pytest.mark.versions
def test_a_bounded_source_is_read_in_one_pass_in_batch_mode(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    sums = env.add_source(Segments(tmp_path, epoch=70)).key_by("key").sum("number")
    expected = [sum(range(i, ELEMENTS, KEYS)) for i in range(KEYS)]
    assert sorted(row.number for row in sums.execute_and_collect()) == expected


class Nothing(ReplayableSource):
    """A source that ends before its first element."""

    bounded = True

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int) -> int:
        return start

    def read(self, start: int, end: int) -> Iterator[Reading]:
        raise AssertionError("there is nothing to read")


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING])
def test_a_bounded_source_without_elements_ends_the_job(
    env: StreamExecutionEnvironment, mode: RuntimeExecutionMode
) -> None:
    env.set_runtime_mode(mode)
    sums = env.add_source(Nothing()).key_by("key").sum("number")
    assert list(sums.execute_and_collect()) == []


class Unbounded(Segments):
    """The same numbers, with no promise that they are all."""

    bounded = False


@pytest.mark.versions
def test_an_unbounded_source_is_drained_where_that_is_asked_for_and_else_runs_on(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    numbers = env.add_source(Unbounded(tmp_path, epoch=500)).map(lambda r: r.number, int)
    env.set_available_now()
    assert sorted(numbers.execute_and_collect()) == list(range(ELEMENTS))
    env.set_available_now(False)
    with numbers.execute_and_collect() as results:
        found = sorted(element for _, element in zip(range(ELEMENTS), results, strict=False))
        assert found == list(range(ELEMENTS))
        assert results.client.status() is JobStatus.RUNNING


class Broken(Segments):
    """Fails in one of its methods."""

    def __init__(self, directory: Path, where: str) -> None:
        super().__init__(directory, 100)
        self.where = where

    def latest_offset(self, start: Any) -> Any:
        if self.where == "latest":
            raise TimeoutError("no answer")
        return {5: start} if self.where == "offset" else super().latest_offset(start)

    def partitions(self, start: Any, end: Any) -> Any:
        return 5 if self.where == "partitions" else super().partitions(start, end)

    def read(self, start: Any, end: Any) -> Iterator[Reading]:
        if self.where == "read":
            raise LookupError("deleted meanwhile")
        for reading in super().read(start, end):
            yield Reading("five", reading.key) if self.where == "type" else reading  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("latest", r"source 'broken', in latest_offset\(\): TimeoutError: no answer"),
        ("offset", r"source 'broken', in latest_offset\(\): .*the key 5, .*use strings as keys"),
        ("partitions", r"source 'broken', in partitions\(\): TypeError: 'int' object"),
        (
            "read",
            r"source 'broken', in read\(\) from \{'number': \d+\} to .*: LookupError: deleted",
        ),
        ("type", r"source 'broken', read from .* the field number is declared bigint"),
    ],
)
def test_an_error_says_in_which_method_of_which_source(
    env: StreamExecutionEnvironment, tmp_path: Path, where: str, said: str
) -> None:
    env.set_restart_strategy(RestartStrategies.no_restart())
    stream = env.add_source(Broken(tmp_path, where), name="broken")
    with pytest.raises(JobExecutionError, match=said):
        list(stream.map(lambda r: r.number, int).execute_and_collect())
