"""What tests of recovery need around a job: input, faults, and a look at storage."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import fsspec

from holdfast._faults import VARIABLE
from holdfast.checkpoint.files.completed import completed_checkpoints, load
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient
    from holdfast.job.statistics import CheckpointingStatistics


class Feed:
    """A directory of files, of which a stream takes one in every epoch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._files = 0
        self.elements: list[int] = []
        directory.mkdir(parents=True)

    def add(self, elements: Iterable[int]) -> Feed:
        """Add a file of elements; it appears as a whole."""
        added = list(elements)
        rows = [json.dumps({"i": i, "k": f"k{i % 20}"}) for i in added]
        hidden = self._directory / f".{self._files:05d}"
        hidden.write_text("\n".join(rows), encoding="utf-8")
        # Spark reads files in the order of their times, which may be the same otherwise.
        written = time.time() - 1000 + self._files
        os.utime(hidden, (written, written))
        hidden.rename(self._directory / f"{self._files:05d}.json")
        self._files += 1
        self.elements += added
        return self

    def fill(self, files: int, each: int = 40) -> Feed:
        """Add several files of elements that follow those already there."""
        for _ in range(files):
            start = len(self.elements)
            self.add(range(start, start + each))
        return self

    def stream(self, per_epoch: int = 1) -> DataFrame:
        reader = self._spark.readStream.schema("i bigint, k string")
        return reader.option("maxFilesPerTrigger", per_epoch).json(str(self._directory))


def figures(client: JobClient) -> CheckpointingStatistics:
    """The statistics of the job's checkpoints."""
    statistics = client.statistics().checkpoints
    assert statistics is not None
    return statistics


def wait_for(condition: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def stored(root: Path | str) -> set[str]:
    """All files of a job in checkpoint storage, but for its fences, records and highest id."""
    fs, directory = fsspec.core.url_to_fs(str(root))
    found = {path.removeprefix(f"{directory}/") for path in fs.find(directory)}
    return {path for path in found if not path.startswith(("fence/", "completed/", "used/"))}


def referenced(root: Path | str) -> set[str]:
    """The files that a job's complete checkpoints consist of."""
    files = FileSystemFiles(str(root))
    ids = [checkpoint_id for _, checkpoint_id in completed_checkpoints(files)]
    paths = {path for one in ids for path in paths_of(load(files, one))}
    return paths | {f"chk-{one}/_metadata" for one in ids}


class Faults:
    """Faults for the driver and for Python workers, which may change while both live."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._environment = spark.sparkContext.environment
        self._file = directory / "faults.json"

    def __enter__(self) -> Faults:
        # Spark starts workers of their own for every environment: the path never changes.
        self._environment[VARIABLE] = os.environ[VARIABLE] = str(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        del self._environment[VARIABLE], os.environ[VARIABLE]

    def plan(self, directory: Path, *faults: dict[str, Any]) -> list[Path]:
        """Let these faults strike once each; returns the files that tell whether they have."""
        markers = [directory / f"struck-{number}" for number in range(len(faults))]
        planned = [{**f, "once": str(m)} for f, m in zip(faults, markers, strict=True)]
        # Processes may read it at any time.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(planned), encoding="utf-8")
        fresh.rename(self._file)
        return markers
