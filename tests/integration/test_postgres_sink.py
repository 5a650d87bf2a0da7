"""PostgresSink against a real PostgreSQL server: every row once, whatever fails when."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import _faults as faults
from holdfast.api.sinks import CommitRequest
from holdfast.connectors.postgres.commit_table import CommitTable
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import SinkError
from tests.support.postgres_tools import (
    NO_RUNTIME,
    SCHEMA,
    MemoryStaging,
    batch,
    commit,
    in_log,
    numbers,
    staged,
    writer_context,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.api.sinks import StagedRows
    from tests.support.postgres import PostgresServer


def test_staged_rows_appear_when_they_are_committed_and_not_before(db, log):
    request = staged(log, batch([("a", 1), ("b", 2)]), batch([("a", 3)]))
    assert in_log(db) == []
    assert commit(log, request) == ["done"]
    assert in_log(db) == [("a", 1), ("a", 3), ("b", 2)]


def test_an_upsert_keeps_the_last_row_of_a_key_within_and_across_epochs(db, counts):
    first = staged(counts, batch([("a", 1), ("b", 1), ("a", 2)]), batch([("a", 3)]), epoch=1)
    second = staged(counts, batch([("b", 9)]), epoch=2)
    assert commit(counts, first, second) == ["done", "done"]
    assert commit(counts, staged(counts, batch([("c", 5), ("a", 4)]), checkpoint=2)) == ["done"]
    assert sorted(db.execute("SELECT * FROM counts")) == [("a", 4), ("b", 9), ("c", 5)]


def test_committing_a_checkpoint_twice_publishes_it_once(db, log):
    request = staged(log, batch([("a", 1)]))
    assert commit(log, request) == ["done"]
    assert commit(log, request) == ["already"]
    assert in_log(db) == [("a", 1)]


def test_a_lower_checkpoint_of_an_old_driver_is_ignored(db, log):
    assert commit(log, staged(log, batch([("new", 2)]), checkpoint=7, epoch=9)) == ["done"]
    assert commit(log, staged(log, batch([("old", 1)]), checkpoint=6, epoch=10)) == ["already"]
    assert in_log(db) == [("new", 2)]


def test_epochs_of_a_checkpoint_may_be_committed_in_parts(db, log):
    first, second = (staged(log, batch([("a", n)]), checkpoint=3, epoch=n) for n in (1, 2))
    assert commit(log, first) == ["done"]
    assert commit(log, first, second) == ["already", "done"]
    assert in_log(db) == [("a", 1), ("a", 2)]


def test_what_was_published_is_written_down_for_every_subtask(db, log):
    commit(log, staged(log, batch([("a", 1)]), checkpoint=4, epoch=11, subtask=3))
    rows = db.execute("SELECT lineage, sink, subtask, checkpoint_id, epoch FROM holdfast_commits")
    assert rows == [("lineage", "sink", 3, 4, 11)]


def test_sinks_and_jobs_that_share_a_table_do_not_hide_each_others_rows(db, log):
    others: list[dict[str, Any]] = [{}, {"uid": "other"}, {"lineage": "other"}, {"subtask": 1}]
    for number, who in enumerate(others):
        assert commit(log, staged(log, batch([("a", number)]), **who)) == ["done"]
    assert in_log(db) == [("a", number) for number in range(4)]


def test_the_commit_table_stays_when_the_job_has_ended(db, log):
    request = staged(log, batch([("a", 1)]))
    commit(log, request)
    log.create_committer(NO_RUNTIME).clean_up("job", "sink", "1-1-ended")
    assert commit(log, request) == ["already"]


def test_nothing_is_staged_or_published_for_an_epoch_without_rows(db, log):
    writer = log.create_writer(writer_context(SCHEMA, MemoryStaging()))
    assert list(writer.prepare_commit()) == []
    assert commit(log, staged(log, batch([]))) == ["done"]
    assert in_log(db) == []


def test_rows_that_a_writer_has_aborted_are_not_staged(log):
    staging = MemoryStaging()
    writer = log.create_writer(writer_context(SCHEMA, staging))
    writer.write_rows(batch([("a", 1)]))
    writer.abort()
    writer.close()
    assert list(writer.prepare_commit()) == []
    assert staging.kept == {}


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_subtasks_publish_into_one_table_at_once(db, mode):
    sinks = {
        "insert": PostgresSink(db.url, "log", commit_table="commits"),
        "upsert": PostgresSink(db.url, "counts", mode="upsert", key="user", commit_table="commits"),
    }
    sink, table, subtasks = sinks[mode], "log" if mode == "insert" else "counts", 6
    rows = [(f"u{n}", n) for n in range(200)]
    orders = [rows, rows[::-1]] * (subtasks // 2)
    requests = [staged(sink, batch(orders[n]), subtask=n) for n in range(subtasks)]
    together = threading.Barrier(subtasks)

    def publish(request: CommitRequest) -> list[str]:
        together.wait(30)
        return commit(sink, request)

    with ThreadPoolExecutor(subtasks) as pool:
        assert list(pool.map(publish, requests)) == [["done"]] * subtasks
    assert db.execute("SELECT count(*) FROM commits") == [(subtasks,)]
    expected = len(rows) * (subtasks if mode == "insert" else 1)
    assert db.execute(f"SELECT count(*) FROM {table}") == [(expected,)]


def test_the_commit_table_can_be_made_by_many_at_once_again_and_again(db, log):
    makers, rounds = 6, 12
    together = threading.Barrier(makers)

    def make(_: int) -> None:
        with log._address.connect() as connection:
            for n in range(rounds):
                together.wait(30)
                CommitTable(connection, (f"commits{n}",)).create(log._address)
                connection.execute(f"SELECT * FROM commits{n}".encode())

    with ThreadPoolExecutor(makers) as pool:
        assert list(pool.map(make, range(makers))) == [None] * makers


def test_two_drivers_that_publish_one_checkpoint_at_once_publish_it_once(db, log):
    commit(log, staged(log, batch([("first", 0)])))
    request = staged(log, batch([("a", n) for n in range(50)]), checkpoint=2)
    copies = [pickle.loads(pickle.dumps(request)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(lambda copy: commit(log, copy)[0], copies))
    assert outcomes == ["already", "already", "already", "done"]
    assert len(in_log(db)) == 51


@pytest.mark.parametrize(
    ("point", "published", "second"),
    [("during-publish", [], "done"), ("published", [("a", 1)], "already")],
)
def test_a_publisher_that_is_killed_is_made_good_by_the_next(
    db, log, tmp_path, point, published, second
):
    fault = {"point": point, "action": "kill", "once": str(tmp_path / "once"), "checkpoint": 5}
    root = Path(__file__).parents[2]
    call = "import sys; from tests.support import postgres_tools as t; t.publish(*sys.argv[1:])"
    child = subprocess.run(
        [sys.executable, "-c", call, db.url, "log", '{"checkpoint": 5}'],
        env={
            **os.environ,
            "PYTHONPATH": f"{root / 'src'}:{root}",
            faults.VARIABLE: json.dumps([fault]),
        },
        check=False,
    )
    assert child.returncode == -9
    assert in_log(db) == published
    assert commit(log, staged(log, batch([("a", 1)]), checkpoint=5)) == [second]
    assert in_log(db) == [("a", 1)]


@pytest.mark.parametrize("point", ["during-publish", "published"])
def test_a_publisher_that_fails_may_publish_again(db, log, tmp_path, monkeypatch, point):
    fault = {"point": point, "action": "raise", "once": str(tmp_path / "once")}
    monkeypatch.setenv(faults.VARIABLE, json.dumps([{**fault, "uid": "sink", "subtask": 0}]))
    request = staged(log, batch([("a", 1)]))
    committer = log.create_committer(NO_RUNTIME)
    with pytest.raises(faults.InjectedFault):
        committer.commit([request])
    committer.commit([request])
    committer.close()
    assert in_log(db) == [("a", 1)]


class _KillingStaging(MemoryStaging):
    """Kills the server once half of the rows have been handed out."""

    def __init__(self, kept: dict[str, list[pa.RecordBatch]], server: PostgresServer) -> None:
        self.kept, self._server = kept, server

    def get(self, staged: StagedRows) -> Iterator[pa.RecordBatch]:
        first, *rest = self.kept[staged.handle]
        yield first
        self._server.kill()
        yield from rest


def test_a_server_that_is_killed_in_the_middle_is_tried_again_later(db, log):
    commit(log, staged(log, batch([("before", 0)])))
    whole = staged(log, batch([("a", 1)]), batch([("b", n) for n in range(50_000)]), checkpoint=2)
    assert isinstance(whole._staging, MemoryStaging)
    broken = CommitRequest(
        whole.committable,
        job_id="job",
        lineage="lineage",
        uid="sink",
        checkpoint_id=2,
        epoch=1,
        subtask=0,
        recovered=False,
        staging=_KillingStaging(whole._staging.kept, db),
    )
    try:
        assert commit(log, broken) == ["retry"]
        assert commit(log, whole) == ["retry"]
        whole.retries = 3
        with pytest.raises(SinkError, match=r"checkpoint 2 .*try 4.*see that the server runs"):
            commit(log, whole)
    finally:
        db.start()
    assert in_log(db) == [("before", 0)]
    assert commit(log, whole) == ["done"]
    assert len(in_log(db)) == 50_002


def test_a_commit_whose_answer_is_lost_is_published_once(db, log, monkeypatch):
    request = staged(log, batch([("a", 1)]))
    real = psycopg.Connection.commit

    def lose_answer(connection: Any) -> None:
        publishing = connection.execute("SELECT count(*) FROM log").fetchone() == (1,)
        real(connection)
        if publishing:
            db.kill()
            connection.execute("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", lose_answer)
        assert commit(log, request) == ["retry"]
    db.start()
    assert commit(log, request) == ["already"]
    assert in_log(db) == [("a", 1)]


def test_rows_can_be_staged_while_the_server_is_away(db):
    sink = PostgresSink(db.url, ("public", "log"))
    db.kill()
    try:
        request = staged(sink, batch([("a", 1)]))
    finally:
        db.start()
    assert commit(sink, request) == ["done"]
    assert in_log(db) == [("a", 1)]


def test_a_deadlock_is_tried_again_later(db, counts):
    db.execute("INSERT INTO counts VALUES ('a', 0), ('b', 0)")
    commit(counts, staged(counts, batch([("x", 0)])))
    with psycopg.connect(db.url) as other:
        other.execute("SET deadlock_timeout = '1min'")
        other.execute("UPDATE counts SET n = 1 WHERE \"user\" = 'b'")
        request = staged(counts, batch([("a", 5), ("b", 5)]), checkpoint=2)
        with ThreadPoolExecutor(1) as pool:
            commits = pool.submit(commit, counts, request)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while db.execute(waiting) == [(0,)]:
                assert not commits.done()
            # Whichever of the two the server gives up, it must be the publication's turn: it
            # is the one that looks for deadlocks after a second, the other after a minute.
            other.execute("UPDATE counts SET n = 1 WHERE \"user\" = 'a'")
            assert commits.result() == ["retry"]
    assert commit(counts, request) == ["done"]


def test_without_exactly_once_an_epoch_is_one_transaction(db):
    sink = PostgresSink(db.url, "log", batch_size=3)
    writer = sink.create_writer(writer_context(SCHEMA, None))
    for n in range(10):
        writer.write_rows(batch([("a", n)]))
    assert in_log(db) == []
    assert list(writer.prepare_commit()) == []
    assert in_log(db) == [("a", n) for n in range(10)]
    writer.close()


def test_without_exactly_once_an_upsert_keeps_the_last_row(db):
    sink = PostgresSink(db.url, "counts", mode="upsert", key=["user"], batch_size=2)
    writer = sink.create_writer(writer_context(SCHEMA, None))
    for n in range(7):
        writer.write_rows(batch([("a", n), ("b", -n)]))
    writer.prepare_commit()
    writer.close()
    assert sorted(db.execute("SELECT * FROM counts")) == [("a", 6), ("b", -6)]


@pytest.mark.parametrize("end", ["abort", "close"])
def test_without_exactly_once_an_aborted_epoch_leaves_no_rows(db, end):
    sink = PostgresSink(db.url, "log", batch_size=1)
    writer = sink.create_writer(writer_context(SCHEMA, None))
    writer.write_rows(batch([("a", 1)]))
    getattr(writer, end)()
    writer.close()
    assert in_log(db) == []
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'"
    assert db.execute(waiting) == [(0,)]


def test_without_exactly_once_a_lost_server_is_an_error_that_says_so(db):
    writer = PostgresSink(db.url, "log", batch_size=1).create_writer(writer_context(SCHEMA, None))
    writer.write_rows(batch([("a", 1)]))
    db.kill()
    try:
        with pytest.raises(SinkError, match=r'writing into "log".*see that the server runs'):
            writer.prepare_commit()
        writer.abort()
        writer.close()
    finally:
        db.start()
    assert in_log(db) == []


def test_a_publication_is_durable_even_where_commits_are_not_by_default(db, log):
    db.execute("ALTER ROLE postgres SET synchronous_commit = off")
    db.execute("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
    try:
        with log._address.connect() as connection:
            names = ("synchronous_commit", "transaction_isolation")
            select = "SELECT current_setting(%s), current_setting(%s)"
            (row,) = connection.execute(select, names)
    finally:
        db.execute("ALTER ROLE postgres RESET ALL")
    assert row == ("on", "read committed")


@given(
    epochs=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    detours=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=4, max_size=4),
    text=st.text(st.characters(exclude_characters="\0", codec="utf-8")),
)
@settings(max_examples=25)
def test_whatever_is_repeated_every_row_is_published_once_and_in_order(
    server, epochs, detours, text
):
    """Checkpoints are published in their order; earlier ones again, any number of times."""
    server.execute("DROP TABLE IF EXISTS history; CREATE TABLE history (t text, n bigint)")
    server.execute("ALTER TABLE history ADD COLUMN place bigserial")
    sink = PostgresSink(server.url, "history")
    schema = pa.schema([("t", pa.string()), ("n", pa.int64())])
    job, values, epoch = f"job-{next(numbers)}", count(), count(1)
    checkpoints = [
        [
            staged(
                sink,
                batch([(text, next(values)), (text, next(values))], schema),
                checkpoint=checkpoint,
                epoch=next(epoch),
                lineage=job,
            )
            for _ in range(size)
        ]
        for checkpoint, size in enumerate(epochs, 1)
    ]
    for done, requests in enumerate(checkpoints):
        assert set(commit(sink, *requests)) == {"done"}
        for again in detours[done]:
            if again <= done:
                assert set(commit(sink, *checkpoints[again])) == {"already"}
    expected = [(text, n) for n in range(next(values))]
    assert server.execute("SELECT t, n FROM history ORDER BY place") == expected
