"""Readers of a FileSink see the committed rows, each once, and nothing else, ever."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import _faults as faults
from holdfast.connectors.files.sink import FileSink
from tests.support.file_sinks import all_files, clean_up, commit, context, visible_files

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([("p", pa.string()), ("n", pa.int64())])
PARTITIONS = st.sampled_from([None, "", "a", "b", "a/b"])
BATCHES = st.lists(st.lists(PARTITIONS, max_size=5), min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("epoch"), BATCHES, st.integers(0, 1)),
    st.tuples(st.just("die while writing"), BATCHES, st.integers(0, 1)),
    st.tuples(st.just("abort"), BATCHES, st.booleans()),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("checkpoint, break off"), st.integers(1, 6)),
    st.tuples(st.just("checkpoint, copy only"), st.integers(0, 6)),
    st.tuples(st.just("publish again")),
    st.tuples(st.just("restart")),
)


@dataclass
class Job:
    """A job with one sink, and what its readers have to see."""

    sink: FileSink
    job_attempt: int = 1
    epoch: int = 0
    attempts: int = 0
    rows: int = 0
    staged: list[tuple[Any, list[int]]] = field(default_factory=list)
    """Committables of no checkpoint yet, and the rows they stand for."""
    published: list[Any] = field(default_factory=list)
    committed: Counter[int] = field(default_factory=Counter)

    def step(self, kind: str, *details: Any) -> None:
        match kind:
            case "epoch":
                writer, rows = self._write(*details)
                self.staged += [(each, rows) for each in writer.prepare_commit()]
                writer.close()
            case "die while writing":
                self._write(*details)[0].close()
            case "abort":
                batches, prepared = details
                writer, _ = self._write(batches, 0)
                if prepared:
                    writer.prepare_commit()
                writer.abort()
                writer.close()
            case "checkpoint":
                commit(self.sink, self._complete())
            case "checkpoint, break off":
                committables = self._complete()
                with breaking_off(*details):
                    try:
                        commit(self.sink, committables)
                    except faults.InjectedFault:
                        self._recover(committables)
            case "checkpoint, copy only":
                committables = self._complete()
                self._copy(committables, *details)
                self._recover(committables)
            case "publish again":
                commit(self.sink, self.published, recovered=True)
            case "restart":
                self._recover([])

    def _write(self, batches: list[list[str | None]], subtask: int) -> tuple[Any, list[int]]:
        self.epoch += 1
        self.attempts += 1
        told = context(
            SCHEMA,
            job_attempt=f"inc-{self.job_attempt}",
            epoch=self.epoch,
            subtask=subtask,
            attempt_id=self.attempts,
        )
        writer, written = self.sink.create_writer(told), []
        for partitions in batches:
            numbers = list(range(self.rows, self.rows + len(partitions)))
            self.rows += len(partitions)
            written += numbers
            writer.write_rows(pa.record_batch([partitions, numbers], schema=SCHEMA))
        return writer, written

    def _complete(self) -> list[Any]:
        """A checkpoint: from now on its rows have to appear."""
        committables = [each for each, _ in self.staged]
        self.committed.update(number for _, rows in self.staged for number in rows)
        self.published += committables
        self.staged = []
        return committables

    def _copy(self, committables: list[Any], number: int) -> None:
        fs, root = fsspec.core.url_to_fs(self.sink.path)
        for file in [file for each in committables for file in each.files][:number]:
            target = f"{root}/{file.final}"
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            fs.cp_file(f"{root}/{file.staged}", target)

    def _recover(self, committables: list[Any]) -> None:
        """What no checkpoint holds is lost, what one holds is published, all else goes."""
        self.staged = []
        self.job_attempt += 1
        commit(self.sink, committables, recovered=True)
        clean_up(self.sink, f"inc-{self.job_attempt}")
        assert all_files(self.sink) == visible_files(self.sink)


@contextmanager
def breaking_off(file: int) -> Iterator[None]:
    """The next commit of more than so many files fails after these."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        once = str(Path(directory) / "struck")
        fault = {"point": "during-publish", "action": "raise", "once": once, "file": file}
        patch.setenv(faults.VARIABLE, json.dumps([fault]))
        yield


def seen(sink: FileSink) -> Counter[int]:
    """Rows that a reader sees."""
    fs, root = fsspec.core.url_to_fs(sink.path)
    texts = (fs.cat_file(f"{root}/{name}") for name in visible_files(sink))
    return Counter(json.loads(line)["n"] for text in texts for line in text.splitlines())


def run(path: str, partitioned: bool, max_file_bytes: int, steps: list[Any]) -> None:
    partition_by = ["p"] if partitioned else []
    job = Job(FileSink(path, "json", partition_by=partition_by, max_file_bytes=max_file_bytes))
    for step in steps:
        job.step(*step)
        assert seen(job.sink) == job.committed
    clean_up(job.sink, f"{10**9}-ended")
    assert seen(job.sink) == job.committed
    assert all_files(job.sink) == visible_files(job.sink)


RUNS = given(st.booleans(), st.sampled_from([1, 30, 10**6]), st.lists(STEPS, max_size=12))


@RUNS
def test_in_an_object_store_every_committed_row_is_seen_once(partitioned, max_file_bytes, steps):
    run(f"memory://{uuid.uuid4().hex}", partitioned, max_file_bytes, steps)


@settings(max_examples=25)
@RUNS
def test_on_a_disk_every_committed_row_is_seen_once(partitioned, max_file_bytes, steps):
    with tempfile.TemporaryDirectory() as directory:
        run(f"{directory}/out", partitioned, max_file_bytes, steps)
