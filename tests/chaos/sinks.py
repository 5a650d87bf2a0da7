"""Where the output of the chaos job goes, and how a reader finds it there.

Of every event, probes included, one row goes into files and one into a table; another
table keeps the newest row of every key. None of the rows tells where epochs were cut.
Which event of a key had which rank is decided by chance, since two subtasks pass events
on; that every event is there once, and every rank once, is not.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds

from holdfast import FileSink, PostgresSink
from tests.chaos.compare import expected_tallies
from tests.chaos.events import KEYS, event
from tests.chaos.functions import Line, Newest, line_of, newest_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast import DataStream
    from tests.support.postgres import PostgresServer

RESULTS, FILES, LOG, NEWEST = "results", "files", "log", "newest"
"""The uids of the sinks: of the function on the driver, and of the others."""
STAGING = ".holdfast"
_TABLES = """
    CREATE SCHEMA {schema};
    CREATE TABLE {schema}.log (number bigint, key bigint, half bigint, rank bigint);
    CREATE TABLE {schema}.newest (key bigint PRIMARY KEY, events bigint, total bigint, xor bigint)
"""


class Rows(NamedTuple):
    """All that readers find of a job's output; how often each row is there."""

    lines: dict[str, Counter[tuple[int, int, int]]]
    """Event, key and half; of the files and of the table."""
    ranks: dict[str, Counter[tuple[int, int]]]
    """Key and rank, of events with data."""
    newest: Counter[tuple[int, ...]]


def create_tables(server: PostgresServer, schema: str) -> None:
    """Make the tables that a job writes to."""
    server.execute(_TABLES.format(schema=schema))


def attach(keys: DataStream, teams: DataStream, directory: Path, url: str, schema: str) -> None:
    """Let the job write to files and tables, from two of its operators."""
    lines = teams.map(line_of, Line).uid("lines")
    lines.sink_to(FileSink(directory / FILES, "parquet", partition_by=["half"])).uid(FILES)
    lines.sink_to(PostgresSink(url, f"{schema}.log")).uid(LOG)
    newest = PostgresSink(url, f"{schema}.newest", mode="upsert", key="key")
    keys.map(newest_of, Newest).uid("newest-of").sink_to(newest).uid(NEWEST)


def written(directory: Path, server: PostgresServer, schema: str, data: int) -> Rows:
    """What the job has written, as anybody reads it."""
    columns = list(Line._fields)
    table = ds.dataset(directory / FILES, partitioning="hive").to_table(columns=columns)
    lines: dict[str, list[tuple[Any, ...]]] = {
        FILES: list(zip(*(table[name].to_pylist() for name in columns), strict=True)),
        LOG: server.execute(f"SELECT {', '.join(columns)} FROM {schema}.log"),
    }
    newest = server.execute(f"SELECT {', '.join(Newest._fields)} FROM {schema}.newest")
    return _rows({name: map(Line._make, found) for name, found in lines.items()}, newest, data)


def expected_rows(count: int, data: int) -> Rows:
    """What must be written of the first `count` events."""
    lines, ranks = [], Counter[int]()
    for number in range(count):
        key, probe = event(number, data)[1:]
        ranks[key] += not probe
        lines.append(Line(number, key, key % 2, 0 if probe else ranks[key]))
    newest = [(key, *tally) for key, tally in expected_tallies(range(data), data).items()]
    # Probes visit all keys, also those that no event with data has.
    missing = {*range(KEYS)} - {key for key, *_ in newest}
    newest += [(key, 0, 0, 0) for key in missing]
    return _rows({FILES: lines, LOG: lines}, newest, data)


def _rows(lines: dict[str, Any], newest: Iterable[tuple[int, ...]], data: int) -> Rows:
    whole = {name: list(found) for name, found in lines.items()}
    return Rows(
        {name: Counter((n, key, half) for n, key, half, _ in whole[name]) for name in whole},
        {name: Counter((key, c) for n, key, _, c in whole[name] if n < data) for name in whole},
        Counter(newest),
    )


def row_differences(expected: Rows, found: Rows) -> list[str]:
    """A sentence for every sink and what it has lost or has too often; none if all is well."""
    faults = _unequal(NEWEST, "rows", expected.newest, found.newest)
    for sink in expected.lines:
        faults += _unequal(sink, "events", expected.lines[sink], found.lines[sink])
        faults += _unequal(sink, "ranks", expected.ranks[sink], found.ranks[sink])
    return faults


def _unequal(sink: str, what: str, expected: Counter[Any], found: Counter[Any]) -> list[str]:
    sides = {"lost": expected - found, "has too often": found - expected}
    return [
        f"sink {sink!r} {verb} {rows.total()} {what}: {sorted(rows)[:5]}"
        for verb, rows in sides.items()
        if rows
    ]


def staged_files(directory: Path) -> list[str]:
    """What is left of staged files in the directory that readers read."""
    return sorted(str(path) for path in (directory / FILES / STAGING).rglob("*"))
