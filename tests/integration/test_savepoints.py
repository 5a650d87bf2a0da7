"""Savepoints of real jobs: taken, moved, restored, refused, disposed of."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CheckpointingMode,
    CheckpointListener,
    Configuration,
    FileSystemCheckpointStorage,
    JobStatus,
    KeyedProcessFunction,
    RecoveryClaimMode,
    SavepointFormatType,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptCheckpointError,
    JobExecutionError,
    RestoreError,
)
from holdfast.savepoints import dispose_savepoint
from tests.support.recovery_jobs import (
    BOOKED,
    HASHMAP,
    ROCKSDB,
    SUMMED,
    TIMEOUT,
    Books,
    Numbers,
    RecoveryJob,
    Sums,
    expected,
)
from tests.support.recovery_tools import Faults, Feed, stored, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import JobClient

CANONICAL, NATIVE = SavepointFormatType.CANONICAL, SavepointFormatType.NATIVE
NO_CHECKPOINTS = {"interval": None}


class Saved:
    """A job that is ended with a savepoint, and the one that goes on from there."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.target = directory / "savepoints"
        self.feed = Feed(spark, directory / "input")
        self.runs = 0

    def job(self, like: RecoveryJob | None = None, **options: Any) -> RecoveryJob:
        """A job with checkpoints of its own, over the input so far and to come."""
        self.runs += 1
        directory = self.directory / f"chk-of-{self.runs}"
        return RecoveryJob(self.spark, directory, chain=True, like=like, **options)

    def start(self, job: RecoveryJob, files: int = 2, **beginning: Any) -> JobClient:
        """Start it upon so many more files, and wait until it has processed them all."""
        self.feed.fill(files)
        client = job.start(self.feed.stream(), **beginning)
        return self.caught_up(job, client)

    def caught_up(self, job: RecoveryJob, client: JobClient) -> JobClient:
        def done() -> bool:
            if client.status().is_terminal:
                client.result(TIMEOUT)
            return processed(job) >= len(self.feed.elements)

        wait_for(done, "all input to be processed")
        return client

    def only_savepoint(self) -> Path:
        [found] = self.target.iterdir()
        return found


def processed(job: RecoveryJob) -> int:
    """Elements that have come out of the last operator of all."""
    return sum(row[1] for row in job.sums.final(1).values())


@pytest.fixture
def saved(spark: SparkSession, tmp_path: Path) -> Saved:
    return Saved(spark, tmp_path)


@pytest.mark.versions
@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        (CANONICAL, HASHMAP, ROCKSDB),
        (NATIVE, ROCKSDB, HASHMAP),
        pytest.param(CANONICAL, ROCKSDB, HASHMAP, marks=pytest.mark.slow),
        pytest.param(NATIVE, HASHMAP, HASHMAP, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_job_goes_on_elsewhere_on_other_subtasks_and_another_backend(
    saved: Saved, form: SavepointFormatType, before: str, after: str
) -> None:
    first = saved.job(backend=before, parallelism=2)
    client = saved.start(first)
    path = client.stop_with_savepoint(str(saved.target), format_type=form)
    assert client.status() is JobStatus.FINISHED
    assert path == str(saved.only_savepoint())
    assert not stored(saved.directory / "chk-of-1")
    # It is whole by itself, wherever it is.
    moved = saved.directory / "moved"
    shutil.move(path, moved)
    second = saved.job(like=first, backend=after, parallelism=3)
    resumed = saved.start(second, from_savepoint=str(moved))
    resumed.cancel()
    assert second.outcome() == expected(saved.feed.elements)
    assert {n for _, n, _, known in second.numbers.rows if known == "2:0 2:1"}


def test_a_job_goes_on_while_and_after_a_savepoint_is_taken(saved: Saved) -> None:
    first = saved.job()
    client = saved.start(first)
    path = client.trigger_savepoint(saved.target)
    assert client.status() is JobStatus.RUNNING
    at_savepoint = list(saved.feed.elements)
    saved.feed.fill(2)
    saved.caught_up(first, client)
    client.cancel()
    assert first.outcome() == expected(saved.feed.elements)
    # Whoever starts from it sees what came after it, and only that.
    second = saved.job()
    resumed = second.start(saved.feed.stream(), from_savepoint=f"{path}/_metadata")
    new = len(saved.feed.elements) - len(at_savepoint)
    saved.caught_up(second, resumed).cancel()
    assert sorted(row[1] for row in second.books.rows) == saved.feed.elements[-new:]
    assert second.outcome().books == expected(saved.feed.elements).books


def test_a_job_without_checkpoints_takes_savepoints(saved: Saved) -> None:
    first = saved.job(settings={**NO_CHECKPOINTS, "savepoint-dir": str(saved.target)})
    client = saved.start(first)
    assert client.statistics().checkpoints is None
    path = client.stop_with_savepoint()
    second = saved.job(like=first, parallelism=1, settings=NO_CHECKPOINTS)
    resumed = saved.start(second, from_savepoint=path)
    again = resumed.stop_with_savepoint(str(saved.target))
    assert second.outcome() == expected(saved.feed.elements)
    third = saved.job(like=second)
    saved.start(third, from_savepoint=again).cancel()
    assert third.outcome() == expected(saved.feed.elements)


def test_a_job_that_keeps_checkpoints_in_the_driver_writes_savepoints_to_files(
    saved: Saved,
) -> None:
    first = saved.job(settings={"dir": None, "storage": "jobmanager"})
    path = saved.start(first).cancel_with_savepoint(str(saved.target))
    assert first.client is not None
    assert first.client.status() is JobStatus.CANCELED
    second = saved.job(like=first)
    saved.start(second, from_savepoint=path).cancel()
    assert second.outcome() == expected(saved.feed.elements)


def test_a_savepoint_that_cannot_be_taken_leaves_nothing_and_the_job_goes_on(
    saved: Saved,
) -> None:
    (saved.directory / "file").write_text("no directory")
    job = saved.job()
    client = saved.start(job, files=1)
    with pytest.raises(ConfigurationError, match=r"set execution\.checkpointing\.savepoint-dir"):
        client.trigger_savepoint()
    with pytest.raises(ConfigurationError, match=r"'native' is not a savepoint format; pass"):
        client.trigger_savepoint(str(saved.target), "native")  # type: ignore[arg-type]
    for end in (client.trigger_savepoint, client.stop_with_savepoint):
        with pytest.raises(CheckpointError, match=r"/file/_metadata: .*Not a directory"):
            end(str(saved.directory / "file"))
    saved.feed.fill(1)
    saved.caught_up(job, client).cancel()
    assert job.outcome() == expected(saved.feed.elements)
    with pytest.raises(JobExecutionError, match="is CANCELED; a savepoint is taken of a running"):
        client.trigger_savepoint(str(saved.target))
    assert not saved.target.exists()


@pytest.mark.parametrize(
    ("point", "interval"),
    [
        ("after-savepoint-part", "10 ms"),
        ("before-savepoint-metadata", None),
        pytest.param("before-savepoint-part", "10 ms", marks=pytest.mark.slow),
        pytest.param("before-savepoint-part", None, marks=pytest.mark.slow),
        pytest.param("after-savepoint-part", None, marks=pytest.mark.slow),
        pytest.param("before-savepoint-metadata", "10 ms", marks=pytest.mark.slow),
    ],
)
def test_a_savepoint_that_fails_leaves_nothing_and_the_next_one_is_right(
    saved: Saved, tmp_path: Path, point: str, interval: str | None
) -> None:
    with Faults(saved.spark, tmp_path) as faults:
        job = saved.job(settings={"interval": interval})
        client = saved.start(job, files=1)
        [struck] = faults.plan(tmp_path, {"point": point, "action": "raise"})
        with pytest.raises(CheckpointError, match=r"was not taken: .*InjectedFault"):
            client.stop_with_savepoint(str(saved.target))
        assert struck.exists()
        # The failure is told first: storage that hangs must not keep anybody waiting.
        wait_for(lambda: not list(saved.target.glob("*")), "what was written of it to go")
        saved.feed.fill(1)
        saved.caught_up(job, client)
        path = client.stop_with_savepoint(str(saved.target))
    second = saved.job(like=job, backend=ROCKSDB)
    saved.start(second, from_savepoint=path).cancel()
    assert second.outcome() == expected(saved.feed.elements)


def test_a_savepoint_before_the_first_row_starts_a_job_at_the_beginning(saved: Saved) -> None:
    first = saved.job()
    client = first.start(saved.feed.stream())
    path = client.stop_with_savepoint(str(saved.target))
    second = saved.job()
    refusals: list[str] = []

    def ask(_: Any) -> None:
        # Within an epoch, which it would wait for.
        if second.client is not None and not refusals:
            with pytest.raises(JobExecutionError) as refusal:
                second.client.trigger_savepoint(str(saved.target))
            refusals.append(str(refusal.value))

    second.env.add_epoch_listener(ask)
    client = saved.start(second, from_savepoint=path)
    wait_for(lambda: refusals, "a savepoint to be refused")
    client.cancel()
    assert second.outcome() == expected(saved.feed.elements)
    assert "request it from another thread" in refusals[0]


def test_a_savepoint_holds_no_input_and_no_output_that_waits(saved: Saved) -> None:
    job = saved.job(settings={"unaligned.enabled": True, "mode": "EXACTLY_ONCE"})
    client = saved.start(job)
    path = client.stop_with_savepoint(str(saved.target))
    head, body = (saved.only_savepoint() / "_metadata").read_text().split("\n", 1)
    assert json.loads(head)["format"] == 5
    manifest = json.loads(body)
    assert manifest["is_savepoint"]
    assert manifest["committables"] == manifest["channel_state"] == []
    second = saved.job(like=job)
    saved.start(second, from_savepoint=path).cancel()
    assert second.outcome() == expected(saved.feed.elements)


def test_a_claimed_savepoint_goes_when_the_job_has_checkpoints_of_its_own(saved: Saved) -> None:
    first = saved.job()
    path = saved.start(first, files=1).stop_with_savepoint(str(saved.target))
    kept = saved.job(like=first)
    saved.start(kept, files=1, from_savepoint=path).cancel()
    assert saved.only_savepoint().exists()
    claiming = saved.job(like=first)
    client = claiming.start(
        saved.feed.stream(), from_savepoint=path, claim_mode=RecoveryClaimMode.CLAIM
    )
    wait_for(lambda: not list(saved.target.iterdir()), "the savepoint to be deleted")
    saved.caught_up(claiming, client).cancel()
    assert claiming.outcome() == expected(saved.feed.elements)


def test_a_job_with_checkpoints_of_its_own_is_not_thrown_back_by_a_savepoint(
    saved: Saved,
) -> None:
    retain = {"externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    first = saved.job()
    path = saved.start(first, files=1).stop_with_savepoint(str(saved.target))
    directory = saved.directory / "chk"
    second = RecoveryJob(saved.spark, directory, chain=True, like=first, settings=retain)
    client = saved.start(second, files=1, job_id="lasting", from_savepoint=path)
    second.wait_for_checkpoint(len(saved.feed.elements))
    client.cancel()
    # The same command once more, as whoever supervises drivers gives it: it goes on.
    third = RecoveryJob(saved.spark, directory, chain=True, like=second, settings=retain)
    client = saved.start(third, files=1, job_id="lasting", from_savepoint=path)
    other = client.trigger_savepoint(str(saved.target))
    saved.feed.fill(1)
    saved.caught_up(third, client)
    third.wait_for_checkpoint(len(saved.feed.elements))
    client.cancel()
    assert third.outcome() == expected(saved.feed.elements)
    fourth = RecoveryJob(saved.spark, directory, chain=True, like=third, settings=retain)
    with pytest.raises(RestoreError, match=r"did not begin from it.*under another job id"):
        fourth.start(saved.feed.stream(), job_id="lasting", from_savepoint=other)


def test_a_job_that_was_stopped_with_a_savepoint_does_not_begin_anew_under_its_id(
    saved: Saved,
) -> None:
    first = saved.job()
    directory = saved.directory / "chk-of-1"
    path = saved.start(first, job_id="lasting").stop_with_savepoint(str(saved.target))
    # As whoever supervises drivers does, if this one died before it could say where that is.
    for_nothing = RecoveryJob(saved.spark, directory, chain=True)
    with pytest.raises(RestoreError, match=re.escape(path)):
        for_nothing.start(saved.feed.stream(), job_id="lasting")
    second = RecoveryJob(saved.spark, directory, chain=True, like=first)
    client = saved.start(second, job_id="lasting", from_savepoint=path)
    other = client.cancel_with_savepoint(str(saved.target))
    for_nothing = RecoveryJob(saved.spark, directory, chain=True)
    with pytest.raises(RestoreError, match=re.escape(other)):
        for_nothing.start(saved.feed.stream(), job_id="lasting")
    third = RecoveryJob(saved.spark, directory, chain=True, like=second)
    saved.start(third, job_id="lasting", from_savepoint=other).cancel()
    assert third.outcome() == expected(saved.feed.elements)
    assert not stored(directory / "lasting")


@pytest.mark.parametrize("form", [CANONICAL, pytest.param(NATIVE, marks=pytest.mark.slow)])
def test_a_damaged_savepoint_is_refused_with_the_reason(
    saved: Saved, form: SavepointFormatType
) -> None:
    first = saved.job(settings=NO_CHECKPOINTS)
    path = saved.start(first, files=1).stop_with_savepoint(str(saved.target), format_type=form)
    whole = saved.only_savepoint()

    def refused(damage: Any, error: type[Exception], match: str) -> None:
        copied = saved.directory / "damaged"
        shutil.copytree(whole, copied)
        damage(copied)
        with pytest.raises(error, match=match):
            saved.job(restarts=0).start(saved.feed.stream(), from_savepoint=str(copied))
        shutil.rmtree(copied)

    def largest(copied: Path) -> Path:
        files = [file for file in (copied / "books").rglob("*") if file.is_file()]
        return max(files, key=lambda file: file.stat().st_size)

    def flip(copied: Path) -> None:
        file = largest(copied)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)

    def cut(copied: Path) -> None:
        file = largest(copied)
        file.write_bytes(file.read_bytes()[:-10])

    def truncate(copied: Path) -> None:
        manifest = copied / "_metadata"
        manifest.write_bytes(manifest.read_bytes()[:-100])

    def foreign(copied: Path) -> None:
        (copied / "_metadata").write_text("something else")

    refused(flip, RestoreError, "the content has changed since the checkpoint wrote it")
    refused(cut, RestoreError, r"has \d+ bytes instead of \d+")
    refused(truncate, CorruptCheckpointError, "was cut off")
    refused(foreign, CorruptCheckpointError, "not a Holdfast checkpoint")
    # The whole one is untouched by all that.
    second = saved.job(like=first)
    saved.start(second, files=1, from_savepoint=path).cancel()
    assert second.outcome() == expected(saved.feed.elements)
    dispose_savepoint(path)
    assert not list(saved.target.iterdir())
    with pytest.raises(RestoreError, match="there is no complete savepoint or checkpoint"):
        saved.job().start(saved.feed.stream(), from_savepoint=path)


class Hindrance(CheckpointListener):
    """Asks for a savepoint where that cannot be, and raises."""

    def __init__(self) -> None:
        self.client: JobClient | None = None
        self.refusals: list[str] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        assert self.client is not None
        with pytest.raises(JobExecutionError) as refusal:
            self.client.trigger_savepoint("/tmp")
        self.refusals.append(str(refusal.value))
        raise LookupError("nobody there")


def test_what_fails_behind_a_complete_savepoint_restarts_nothing(saved: Saved) -> None:
    hindrance = Hindrance()
    first = saved.job(settings={"interval": "1 h"})
    first.env.add_checkpoint_listener(hindrance)
    hindrance.client = saved.start(first)
    path = hindrance.client.stop_with_savepoint(str(saved.target))
    assert hindrance.client.status() is JobStatus.FINISHED
    assert hindrance.client.statistics().restarts == 0
    assert len(hindrance.refusals) == 1
    assert "request it from another thread" in hindrance.refusals[0]
    second = saved.job(like=first)
    saved.start(second, from_savepoint=path).cancel()
    assert second.outcome() == expected(saved.feed.elements)


def test_a_job_without_state_goes_on_from_a_savepoint(saved: Saved) -> None:
    seen: list[int] = []

    def start(**beginning: Any) -> JobClient:
        env = StreamExecutionEnvironment.get_execution_environment(saved.spark)
        env.enable_checkpointing("50 ms", CheckpointingMode.AT_LEAST_ONCE)
        even = env.from_dataframe(saved.feed.stream()).uid("source").filter(lambda row: True)
        even.foreach_batch(lambda df, _: seen.extend(row.i for row in df.collect()))
        client = env.execute_async("stateless", **beginning)
        saved.feed.fill(1)
        wait_for(lambda: len(seen) >= len(saved.feed.elements), "all input")
        return client

    path = start().stop_with_savepoint(str(saved.target))
    start(from_savepoint=path).cancel()
    assert sorted(seen) == saved.feed.elements


class Twice(KeyedProcessFunction):
    """Counts the elements of every key, in a state of its own."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


def test_programs_change_operator_by_operator(saved: Saved) -> None:
    first = saved.job()
    path = saved.start(first, files=1).stop_with_savepoint(str(saved.target))
    known = len(saved.feed.elements)

    def program(*, books: bool, fresh: bool) -> tuple[StreamExecutionEnvironment, list[Any]]:
        env = StreamExecutionEnvironment.get_execution_environment(saved.spark, Configuration())
        env.set_parallelism(2)
        rows: list[Any] = []
        source = env.from_dataframe(saved.feed.stream(), name="renamed").uid("source")
        # A step without state, where there was none.
        source = source.filter(lambda row: row.i >= 0)
        if books:
            numbers = source.process(Numbers(), "i bigint, k string").uid("numbers").name("new")
            found = numbers.key_by("k").process(Books(), BOOKED).uid("books")
            found.foreach_batch(lambda df, _: rows.extend(map(tuple, df.collect())))
            found.key_by(lambda row: row.i % 3).process(Sums(), SUMMED).uid("sums").print()
        if fresh:
            twice = source.key_by("k").process(Twice(), "k string, n bigint").uid("twice")
            twice.foreach_batch(lambda df, _: rows.extend(map(tuple, df.collect())))
        return env, rows

    env, _ = program(books=False, fresh=True)
    with pytest.raises(RestoreError, match=r"no operator for that of .*'books'.*ignore-unclaimed"):
        env.execute_async("without", from_savepoint=path)
    env, rows = program(books=False, fresh=True)
    env.set_available_now()
    saved.feed.fill(1)
    env.execute("allowed", from_savepoint=path, allow_non_restored_state=True)
    # An operator that is new starts empty; sources go on where they were.
    assert sum(1 for _ in rows) == len(saved.feed.elements) - known
    assert max(n for _, n in rows) == 2
    env, rows = program(books=True, fresh=True)
    env.set_available_now()
    env.execute("added", from_savepoint=path)
    last = {row[0]: row for row in sorted((r for r in rows if len(r) == 6), key=lambda r: r[2])}
    assert {key: row[2:] for key, row in last.items()} == expected(saved.feed.elements).books


def test_sources_are_told_apart_by_their_uids(saved: Saved) -> None:
    feeds = {name: Feed(saved.spark, saved.directory / name) for name in ("one", "two", "three")}
    seen: dict[str, list[int]] = {name: [] for name in feeds}

    def see(name: str, df: Any, _: int) -> None:
        seen[name].extend(row.n for row in df.collect())

    def is_read(name: str) -> bool:
        return len(seen[name]) >= len(feeds[name].elements)

    def start(*names: str, **beginning: Any) -> JobClient:
        """A job over these sources, in this order; each adds a file, and is read to its end."""
        env = StreamExecutionEnvironment.get_execution_environment(saved.spark)
        env.set_parallelism(2)
        for name in names:
            counted = env.from_dataframe(feeds[name].stream()).uid(name).key_by("k")
            rows = counted.process(Twice(), "k string, n bigint").uid(f"count-{name}")
            rows.foreach_batch(partial(see, name))
        client = env.execute_async("sources", **beginning)
        for name in names:
            feeds[name].fill(1)
            wait_for(partial(is_read, name), name)
        return client

    path = start("one", "two").stop_with_savepoint(str(saved.target))
    # In another order, and with one that is new: it is read from its beginning.
    feeds["three"].fill(1)
    path = start("three", "two", "one", from_savepoint=path).stop_with_savepoint(str(saved.target))
    assert [Counter(seen[name]) for name in feeds] == [{n: 20 for n in range(1, 5)}] * 3
    with pytest.raises(RestoreError, match=r"'count-two'.*ignore-unclaimed-state"):
        start("one", "three", from_savepoint=path)
    client = start("one", "three", from_savepoint=path, allow_non_restored_state=True)
    client.cancel()
    assert Counter(seen["one"]) == {n: 20 for n in range(1, 7)}


@pytest.mark.versions
def test_a_static_dataframe_is_not_read_again_by_a_job_that_goes_on(saved: Saved) -> None:
    static = saved.spark.createDataFrame([(7, "k0"), (8, "k1"), (9, "k0")], "i bigint, k string")
    feed = saved.feed
    seen: list[str] = []

    def start(job_id: str, *, checkpoints: bool, **beginning: Any) -> JobClient:
        env = StreamExecutionEnvironment.get_execution_environment(saved.spark)
        env.set_parallelism(2).set_job_id(job_id)
        if checkpoints:
            env.enable_checkpointing(100)
            storage = FileSystemCheckpointStorage(str(saved.directory / "kept"))
            env.get_checkpoint_config().set_checkpoint_storage(storage)
        rows = env.from_dataframe(static).uid("static")
        both = env.from_dataframe(feed.stream()).uid("feed").union(rows).key_by("k")
        counted = both.process(Twice(), "k string, n bigint").uid("count")
        counted.foreach_batch(lambda df, _: seen.extend(row.k for row in df.collect()))
        client = env.execute_async("beside", **beginning)
        feed.fill(1)
        wait_for(lambda: len(seen) >= len(feed.elements) + 3, "all rows")
        return client

    first = start("first", checkpoints=True).stop_with_savepoint(str(saved.target))
    client = start("second", checkpoints=False, from_savepoint=first)
    second = client.stop_with_savepoint(str(saved.target))
    # Its own checkpoints know the rows as read too, and so does what goes on from those.
    client = start("third", checkpoints=True, from_savepoint=second)
    third = client.stop_with_savepoint(str(saved.target))
    start("fourth", checkpoints=True, from_savepoint=third).cancel()
    assert len(seen) == len(feed.elements) + 3
    # By itself it is read in one pass, which would give out its rows once more.
    alone = StreamExecutionEnvironment.get_execution_environment(saved.spark)
    rows = alone.from_dataframe(static).uid("static").key_by("k")
    rows.process(Twice(), "k string, n bigint").uid("count").foreach_batch(lambda df, _: None)
    assert (
        "in one pass" in alone.compare_savepoint(third, allow_non_restored_state=True).problems[0]
    )
    with pytest.raises(RestoreError, match="in one pass"):
        alone.execute("alone", from_savepoint=third, allow_non_restored_state=True)


def test_a_static_dataframe_in_the_place_of_a_stream_is_refused(saved: Saved) -> None:
    def start(df: Any, **beginning: Any) -> JobClient:
        env = StreamExecutionEnvironment.get_execution_environment(saved.spark)
        control = env.from_generator(int, rate=10.0, type_info=int).uid("control")
        control.foreach_batch(lambda df, _: None)
        counted = env.from_dataframe(df).uid("rows").key_by("k")
        out = counted.process(Twice(), "k string, n bigint").uid("count")
        out.foreach_batch(lambda df, _: seen.extend(df.collect()))
        return env.execute_async("replaced", **beginning)

    seen: list[Any] = []
    saved.feed.fill(1)
    client = start(saved.feed.stream())
    wait_for(lambda: len(seen) >= len(saved.feed.elements), "all rows")
    path = client.stop_with_savepoint(str(saved.target))
    static = saved.spark.createDataFrame([(7, "k0")], "i bigint, k string")
    with pytest.raises(RestoreError, match="'rows' is a static DataFrame, and was another kind"):
        start(static, from_savepoint=path, allow_non_restored_state=True)
