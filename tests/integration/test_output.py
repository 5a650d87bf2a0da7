"""Output on real Spark: every row once, whoever dies; or at once, and perhaps again."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    JobStatus,
    RuntimeExecutionMode,
    SinkFunction,
)
from holdfast.errors import JobExecutionError, RestoreError
from tests.support.output_jobs import (
    TABLES,
    AllSinks,
    OutputJob,
    Process,
    Row,
    Transactions,
    expected,
)
from tests.support.recovery_jobs import TIMEOUT
from tests.support.recovery_tools import Faults, figures, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import JobClient
    from holdfast.statistics import EpochStatistics
    from tests.support.postgres import PostgresServer

TOLERANT = {"tolerable-failed-checkpoints": 1000}
AT_LEAST_ONCE = {"mode": "AT_LEAST_ONCE"}


@pytest.fixture
def db(server: PostgresServer) -> PostgresServer:
    """The server with two empty tables."""
    server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for statement in TABLES:
        server.execute(statement)
    return server


class Watch:
    """Looks at the output at the end of every epoch."""

    def __init__(self, look: Callable[[int], None]) -> None:
        self._look = look
        self.client: JobClient | None = None
        self._elements: dict[int, int] = {0: 0}
        self.looks: list[int] = []
        """How many elements were to be visible."""

    def __call__(self, epoch: EpochStatistics) -> None:
        wait_for(lambda: self.client, "the client")
        assert self.client is not None
        self._elements[epoch.epoch] = self._elements[epoch.epoch - 1] + epoch.events
        newest = figures(self.client).latest_completed
        self.looks.append(self._elements[0 if newest is None else newest.epoch or 0])
        self._look(self.looks[-1])


# Exactly once


@pytest.mark.versions
def test_output_of_every_sink_appears_with_its_checkpoint_and_whole(
    spark: SparkSession, tmp_path: Path, injected: Faults, db: PostgresServer
) -> None:
    # The first checkpoint fails and another later: what they would have published waits.
    injected.plan(
        tmp_path,
        {"point": "before-metadata", "action": "raise", "checkpoint": 1},
        {"point": "before-metadata", "action": "raise", "checkpoint": 4},
    )
    job = OutputJob(tmp_path, TOLERANT, url=db.url)
    sinks = AllSinks(job, db)
    watch = Watch(lambda count: sinks.show(expected(count)))
    env = job.environment(spark).add_epoch_listener(watch)
    sinks.add_to(job.counted(env))
    watch.client = env.execute_async("every sink")
    statistics = watch.client.result(TIMEOUT).statistics
    assert watch.looks[:2] == [0, 40]
    assert watch.looks[-1] == job.count
    assert statistics.restarts == 0
    sinks.show(expected(job.count))
    job.check(db)
    # Once for every checkpoint that had rows; their numbers are its own.
    numbers = [number for number, _ in job.calls.read()]
    assert numbers == sorted(set(numbers))
    assert not {1, 4} & set(numbers)
    # The state of the writers: no page is missing on any subtask, and none came twice.
    pages = [sinks.pages.numbers(subtask) for subtask in range(2)]
    assert pages == [list(range(1, len(mine) + 1)) for mine in pages]
    assert sum(map(len, pages)) >= job.count / 40
    assert job.left_behind() == []
    assert {path.name for path in job.storage.iterdir()} == {"finished.json", "used"}
    assert list(tmp_path.glob("transactions/*.open")) == []


@pytest.mark.usefixtures("no_faults")
def test_the_tail_of_a_bounded_job_is_published_by_its_last_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = OutputJob(tmp_path, {"interval": "1 h"}, count=100)
    watch = Watch(lambda _: None)
    env = job.environment(spark).add_epoch_listener(watch)
    job.add_sinks(job.counted(env))
    watch.client = env.execute_async("tail")
    watch.client.result(TIMEOUT)
    # Epochs of data, of which none was published, and one for the checkpoint alone.
    assert watch.looks == [0, 0, 0, 100]
    job.check()
    assert [number for number, _ in job.calls.read()] == [1]
    assert job.left_behind() == []


@pytest.mark.usefixtures("no_faults")
def test_a_job_that_is_cancelled_leaves_nothing_staged_and_only_whole_checkpoints(
    spark: SparkSession, tmp_path: Path
) -> None:
    retention = {"externalized-checkpoint-retention": "DELETE_ON_CANCELLATION"}
    job = OutputJob(tmp_path, {"interval": "300 ms", "asynchronous": "true", **retention}, count=0)
    client = job.start(spark)
    wait_for(lambda: figures(client).completed >= 2, "two checkpoints")
    client.cancel()
    assert client.status() is JobStatus.CANCELED
    rows = job.files()
    assert rows == expected(len(rows))
    assert job.calls.rows() == rows
    assert rows
    assert job.left_behind() == []


# Processes that die


def kill(point: str, **where: Any) -> dict[str, Any]:
    return {"point": point, **where}


KILLS: dict[str, list[dict[str, Any]]] = {
    "complete, nothing published": [kill("after-metadata", checkpoint=2)],
    "before files": [kill("before-publish", checkpoint=2, uid="files")],
    "before a function on the driver": [kill("before-publish", checkpoint=2, uid="calls")],
    "between two files": [kill("during-publish", checkpoint=2, uid="files")],
    "before COMMIT": [kill("during-publish", checkpoint=2, uid="log")],
    "after COMMIT": [kill("published", checkpoint=2, uid="log")],
    "after COMMIT of an upsert": [kill("published", checkpoint=2, uid="counts")],
    "after files": [kill("after-publish", checkpoint=2, uid="files")],
    "after a function on the driver": [kill("after-publish", checkpoint=2, uid="calls")],
    "while recovering": [
        kill("after-metadata", checkpoint=2),
        kill("before-recovered-publish", checkpoint=2),
    ],
    "while publishing what was recovered": [
        kill("after-metadata", checkpoint=2),
        kill("during-publish", checkpoint=2, uid="log"),
        kill("after-publish", checkpoint=2, uid="calls"),
    ],
}


def run_among(kills: list[dict[str, Any]], place: Path, db: PostgresServer) -> OutputJob:
    """Start the job anew after every kill, until it ends well."""
    arguments: dict[str, Any] = {"url": db.url, "count": 120}
    process = Process(place, **arguments)
    for number in range(len(kills)):
        code = process.start(*kills)
        assert code == -signal.SIGKILL, (number, (place / "log").read_text()[-3000:])
    assert process.start(*kills) == 0, (place / "log").read_text()[-3000:]
    return OutputJob(place, **arguments)


def repeated_calls(job: OutputJob) -> list[int]:
    numbers = [number for number, _ in job.calls.read()]
    return sorted(number for number in set(numbers) if numbers.count(number) > 1)


@pytest.mark.slow
@pytest.mark.spark
def test_a_driver_that_dies_at_one_point_after_another_publishes_everything_once(
    tmp_path: Path, db: PostgresServer
) -> None:
    kills = [
        kill("after-metadata", checkpoint=1),
        kill("during-publish", checkpoint=1, uid="files"),
        kill("published", uid="log"),
    ]
    job = run_among(kills, tmp_path, db)
    job.check(db)
    assert job.left_behind() == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("when", KILLS)
def test_a_driver_that_dies_while_it_publishes_has_published_everything_once_in_the_end(
    tmp_path: Path, db: PostgresServer, when: str
) -> None:
    job = run_among(KILLS[when], tmp_path, db)
    job.check(db)
    again = "calls" in [one.get("uid") for one in KILLS[when] if one["point"] == "after-publish"]
    assert repeated_calls(job) == ([2] if again else [])
    assert job.left_behind() == []


@pytest.mark.versions
@pytest.mark.parametrize(
    "point", [pytest.param("before-commit", marks=pytest.mark.slow), "after-commit"]
)
def test_output_that_a_killed_worker_had_staged_is_never_seen(
    spark: SparkSession, tmp_path: Path, injected: Faults, db: PostgresServer, point: str
) -> None:
    [struck] = injected.plan(tmp_path, {"point": point, "action": "kill", "epoch": 3})
    job = OutputJob(tmp_path, count=160, url=db.url)
    (tmp_path / "transactions").mkdir()
    transactions = Transactions(tmp_path / "transactions")
    env = job.environment(spark)
    counted = job.counted(env)
    job.add_sinks(counted)
    counted.add_sink(transactions).uid("transactions")
    statistics = env.execute("killed worker").statistics
    assert struck.exists()
    assert statistics.restarts == 1
    job.check(db)
    assert transactions.read() == expected(job.count)
    assert {path.suffix for path in transactions.directory.iterdir()} == {".done"}
    assert job.left_behind() == []


# Sinks that fail


def test_what_one_sink_could_not_publish_is_published_later_and_the_others_at_once(
    spark: SparkSession, tmp_path: Path, injected: Faults, db: PostgresServer
) -> None:
    injected.plan(
        tmp_path, {"point": "before-publish", "action": "raise", "uid": "log", "checkpoint": 2}
    )
    # The checkpoints of a job that fails would go, if they did not owe anything.
    deleted = {"externalized-checkpoint-retention": "NO_EXTERNALIZED_CHECKPOINTS"}
    job = OutputJob(tmp_path, deleted, restarts=0, url=db.url)
    client = job.start(spark)
    with pytest.raises(JobExecutionError, match=r"uid 'log'.*could not publish.*checkpoint 2"):
        client.result(TIMEOUT)
    assert client.status() is JobStatus.FAILED
    # Of the subtasks of the sink that failed, one has published.
    assert len(expected(40)) < len(db.execute("SELECT * FROM log")) < len(expected(80))
    assert job.files() == expected(80)
    assert job.calls.rows() == expected(80)
    OutputJob(tmp_path, deleted, url=db.url).run(spark)
    job.check(db)
    assert job.left_behind() == []


@pytest.mark.parametrize("uid", [pytest.param("files", marks=pytest.mark.slow), "calls"])
def test_a_job_whose_sink_fails_restarts_and_publishes(
    spark: SparkSession, tmp_path: Path, injected: Faults, uid: str
) -> None:
    injected.plan(
        tmp_path, {"point": "before-publish", "action": "raise", "uid": uid, "checkpoint": 2}
    )
    job = OutputJob(tmp_path)
    assert job.run(spark).statistics.restarts == 1
    job.check()
    assert job.left_behind() == []


# At least once


def test_output_of_at_least_once_is_there_at_the_end_of_its_epoch(
    spark: SparkSession, tmp_path: Path, injected: Faults, db: PostgresServer
) -> None:
    injected.plan(tmp_path, {"point": "before-metadata", "action": "raise", "checkpoint": 1})
    job = OutputJob(tmp_path, {**TOLERANT, **AT_LEAST_ONCE}, url=db.url, count=120)
    sinks = AllSinks(job, db)
    seen: list[tuple[int, int]] = []
    client: list[JobClient] = []

    def look(epoch: EpochStatistics) -> None:
        wait_for(lambda: client, "the client")
        elements = seen[-1][0] + epoch.events if seen else epoch.events
        seen.append((elements, figures(client[0]).completed))
        sinks.show(expected(elements))

    env = job.environment(spark).add_epoch_listener(look)
    sinks.add_to(job.counted(env))
    client.append(env.execute_async("at least once"))
    client[0].result(TIMEOUT)
    assert seen[0] == (40, 0)
    job.check(db)
    assert job.left_behind() == []


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_a_failure_between_output_and_checkpoint_repeats_rows_with_at_least_once_alone(
    spark: SparkSession, tmp_path: Path, injected: Faults, mode: str
) -> None:
    injected.plan(tmp_path, {"point": "epoch-released", "action": "raise", "epoch": 3})
    job = OutputJob(tmp_path, {"mode": mode})
    assert job.run(spark).statistics.restarts == 1
    assert sorted(set(job.files())) == expected(job.count)
    assert sorted(job.repeated()) == ([] if mode == "EXACTLY_ONCE" else _of_epoch(3))
    assert job.left_behind() == []


def _of_epoch(epoch: int) -> list[Row]:
    before = expected((epoch - 1) * 40)
    return sorted(row for row in expected(epoch * 40) if row not in before)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_a_driver_killed_between_output_and_checkpoint_repeats_rows_with_at_least_once_alone(
    tmp_path: Path, mode: str
) -> None:
    arguments: dict[str, Any] = {"settings": {"mode": mode}, "count": 160}
    process = Process(tmp_path, **arguments)
    fault = kill("epoch-released", epoch=3)
    assert process.start(fault) == -signal.SIGKILL
    assert process.start(fault) == 0
    job = OutputJob(tmp_path, **arguments)
    assert sorted(set(job.files())) == expected(job.count)
    assert sorted(job.repeated()) == ([] if mode == "EXACTLY_ONCE" else _of_epoch(3))
    assert job.left_behind() == []


@pytest.mark.usefixtures("no_faults")
@pytest.mark.parametrize("batch", [False, True], ids=["stream", "one pass"])
def test_without_checkpoints_output_is_released_with_every_epoch(
    spark: SparkSession, tmp_path: Path, db: PostgresServer, batch: bool
) -> None:
    job = OutputJob(tmp_path, {"interval": None}, url=db.url, count=100)
    sinks = AllSinks(job, db)
    seen: list[int] = []

    def look(epoch: EpochStatistics) -> None:
        seen.append(sum(seen[-1:]) + epoch.events)
        sinks.show(expected(seen[-1]))

    env = job.environment(spark).add_epoch_listener(look)
    if batch:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    sinks.add_to(job.counted(env))
    env.execute("no checkpoints")
    assert seen == ([100] if batch else [40, 80, 100])
    sinks.show(expected(100))
    assert [number for number, _ in job.calls.read()] == ([1] if batch else [1, 2, 3])
    assert job.left_behind() == []


# Going back


@pytest.fixture
def failed(
    spark: SparkSession, tmp_path: Path, injected: Faults, caplog: pytest.LogCaptureFixture
) -> OutputJob:
    """A job that has failed in its fourth epoch, after three checkpoints."""
    injected.plan(tmp_path, {"point": "epoch-released", "action": "raise", "epoch": 4})
    job = OutputJob(tmp_path, {"num-retained": 3}, restarts=0)
    with pytest.raises(JobExecutionError, match="injected at epoch-released"):
        job.run(spark)
    injected.plan(tmp_path)
    assert job.files() == expected(120)
    return job


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.versions
def test_going_back_beyond_published_output_is_refused_unless_duplicates_are_accepted(
    spark: SparkSession, failed: OutputJob, caplog: pytest.LogCaptureFixture
) -> None:
    cut_in_half(failed.storage / "chk-3" / "_metadata")
    option = "execution.checkpointing.accept-duplicates-on-fallback"
    with pytest.raises(RestoreError, match=f"checkpoint 3 .* published.* setting {option}"):
        OutputJob(failed.place, {"num-retained": 3}).run(spark)
    assert failed.files() == expected(120)
    with caplog.at_level(logging.WARNING, "holdfast"):
        OutputJob(failed.place, {"num-retained": 3, option: "true"}).run(spark)
    assert any("checkpoint 3 cannot be used" in text for text in caplog.messages)
    assert any("the output of checkpoint 3 is published again" in text for text in caplog.messages)
    assert any("restored from checkpoint 2" in text for text in caplog.messages)
    assert sorted(set(failed.files())) == expected(failed.count)
    assert sorted(failed.repeated()) == _of_epoch(3)


def test_a_job_that_starts_from_anothers_checkpoint_publishes_what_that_one_had_not(
    spark: SparkSession, tmp_path: Path, injected: Faults, db: PostgresServer
) -> None:
    injected.plan(
        tmp_path, {"point": "before-publish", "action": "raise", "uid": "log", "checkpoint": 2}
    )
    first = OutputJob(tmp_path, restarts=0, url=db.url)
    with pytest.raises(JobExecutionError, match="could not publish"):
        first.run(spark)
    path = {"execution.state-recovery.path": str(first.storage / "chk-2")}
    second = OutputJob(tmp_path, path, job_id="another-job", url=db.url)
    second.run(spark)
    second.check(db)
    assert repeated_calls(second) == [2]


# Sinks that cannot take part, and storage that is small


class Nowhere(SinkFunction):
    def invoke(self, value: Any, context: Any) -> None:
        return


@pytest.mark.usefixtures("no_faults")
def test_it_is_logged_once_which_output_a_recovery_may_repeat(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = OutputJob(tmp_path, count=80)
    env = job.environment(spark)
    counted = job.counted(env)
    job.add_sinks(counted)
    counted.print("row").name("shown")
    counted.add_sink(Nowhere()).name("nowhere")
    with caplog.at_level(logging.WARNING, "holdfast"):
        env.execute("repeats")
    [said] = [text for text in caplog.messages if "may be repeated" in text]
    assert "'shown'" in said
    assert "'nowhere'" in said
    assert "FileSink" in said
    assert "'calls'" not in said
    assert capsys.readouterr().out.count("row> ") == 80


IN_DRIVER = {"dir": None, "storage": "jobmanager"}


@pytest.mark.usefixtures("no_faults")
def test_the_drivers_memory_holds_small_output(spark: SparkSession, tmp_path: Path) -> None:
    job = OutputJob(tmp_path, IN_DRIVER)
    job.run(spark)
    job.check()
    assert job.left_behind() == []


@pytest.mark.usefixtures("no_faults")
def test_output_that_is_too_large_for_the_drivers_memory_says_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = {**IN_DRIVER, "jobmanager.max-state-size": "200 kb"}
    job = OutputJob(tmp_path, settings, count=8, restarts=0)
    env = job.environment(spark)
    random = env.from_generator(lambda i: os.urandom(100_000), count=8, type_info=bytes)
    taken: list[int] = []
    random.map(lambda data: (data,), "data binary").foreach_batch(
        lambda df, number: taken.append(number)
    )
    with pytest.raises(
        JobExecutionError, match=r"driver's memory takes at most 204800.*`filesystem`"
    ):
        env.execute("too large")
    assert taken == []
