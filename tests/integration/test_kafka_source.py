"""Kafka as a source, with a real broker: every record once in state and in output."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import JobExecutionError
from tests.support.kafka import kafka_broker
from tests.support.kafka_jobs import Driver, Job, Topics, booked, produce, run, stop
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, expected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver with a broker, for all tests of this file: each has topics of its own."""
    with kafka_broker() as broker:
        driver = Driver(broker, tmp_path_factory.mktemp("driver"))
        yield driver
        driver.close()


@pytest.mark.versions
@pytest.mark.parametrize(
    ("backend", "partitions"), [(HASHMAP, 2), pytest.param(ROCKSDB, 4, marks=pytest.mark.slow)]
)
def test_a_driver_that_is_killed_goes_on_where_its_checkpoint_ends(
    driver: Driver, tmp_path: Path, backend: str, partitions: int
) -> None:
    topic = f"killed-{backend}"
    driver.run(produce, topic, range(400), partitions)
    job = Job(tmp_path, (topic,), backend=backend, job_id=topic)
    # All elements of the third epoch are in the state, and no checkpoint holds them.
    fault = {"point": "before-metadata", "action": "kill", "checkpoint": 3}
    with pytest.raises(BrokenProcessPool):
        driver.run(run, job, fault)
    published = booked(tmp_path / topic).elements
    assert 0 < published.total() < 240
    statistics = driver.run(run, job)
    assert booked(tmp_path / topic) == expected(range(400))
    assert statistics.checkpoints.restored == 1
    assert statistics.events == 400 - published.total()
    # As many to an epoch as the source's own option says.
    assert statistics.epochs < 10


@pytest.mark.parametrize(
    ("before", "after"),
    [(HASHMAP, ROCKSDB), pytest.param(ROCKSDB, HASHMAP, marks=pytest.mark.slow)],
)
def test_a_savepoint_goes_on_with_more_partitions_other_subtasks_and_another_backend(
    driver: Driver, tmp_path: Path, before: str, after: str
) -> None:
    topic = f"saved-{before}"
    driver.run(produce, topic, range(600), 2)
    first = Job(tmp_path, (topic,), parallelism=2, backend=before, per_epoch=50)
    path = driver.run(stop, first, 100)
    published = booked(tmp_path / topic).elements.total()
    assert 100 <= published < 600
    driver.run(produce, topic, range(600, 700))
    driver.run(Topics.grow, topic, 4)
    driver.run(produce, topic, range(700, 900))
    second = Job(tmp_path, (topic,), parallelism=3, backend=after, per_epoch=300)
    statistics = driver.run(run, second, from_savepoint=path)
    assert booked(tmp_path / topic) == expected(range(900))
    assert statistics.events == 900 - published


def test_topics_are_told_apart_by_the_uids_of_their_sources(driver: Driver, tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two", "three")):
        driver.run(produce, name, range(40 + 20 * number), partitions=2 + number)
    path = driver.run(stop, Job(tmp_path, ("one", "two")), 100)
    driver.run(produce, "one", range(100, 130))
    driver.run(produce, "two", range(100, 150))
    driver.run(run, Job(tmp_path, ("three", "two", "one")), from_savepoint=path)
    assert booked(tmp_path / "one") == expected([*range(40), *range(100, 130)])
    assert booked(tmp_path / "two") == expected([*range(60), *range(100, 150)])
    assert booked(tmp_path / "three") == expected(range(80))


def test_records_that_kafka_has_let_go_since_the_savepoint_are_missed(
    driver: Driver, tmp_path: Path
) -> None:
    driver.run(produce, "aged", range(40), 1)
    job = Job(tmp_path, ("aged",))
    path = driver.run(stop, job, 40)
    driver.run(produce, "aged", range(40, 80))
    driver.run(Topics.forget, "aged", partition=0, before=60)
    with pytest.raises(JobExecutionError) as failure:
        driver.run(run, job, from_savepoint=path)
    assert "Could not read records in offset [40, 80) for topic partition aged-0" in beginning(
        failure
    )
    assert booked(tmp_path / "aged") == expected(range(40))
    # Whoever says that they may be lost goes on with those that are there.
    driver.run(run, job._replace(may_lose=True), from_savepoint=path)
    assert booked(tmp_path / "aged") == expected([*range(40), *range(60, 80)])


def test_a_topic_that_was_made_again_since_the_savepoint_is_no_topic_to_go_on_with(
    driver: Driver, tmp_path: Path
) -> None:
    driver.run(produce, "remade", range(40), 1)
    job = Job(tmp_path, ("remade",))
    path = driver.run(stop, job, 40)
    driver.run(Topics.delete, "remade")
    driver.run(produce, "remade", range(20), 1)
    with pytest.raises(JobExecutionError) as failure:
        driver.run(run, job, from_savepoint=path)
    assert "Partition remade-0 offset was changed from 40 to 20" in beginning(failure)
    assert booked(tmp_path / "remade") == expected(range(40))


def beginning(failure: pytest.ExceptionInfo[JobExecutionError]) -> str:
    """What a reader sees first, having checked that it says what to do."""
    text = str(failure.value)[:800]
    assert text.startswith("job 'kafka' failed: ")
    assert "Some data may have been lost because they are not available in Kafka any more" in text
    assert "set the source option failOnDataLoss to false" in text
    return text
