"""Reads and writes the files of a Spark source under `sources/<index>/` of a query's directory.

A file source logs every file it has seen. Each micro-batch with new files adds one
log batch, numbered from 0 without gaps; the source's offset names the newest:

    sources/0/7           v1, then one line of JSON a file: path, timestamp, batchId
    sources/0/9.compact   the same, of log batches 0 to 9, oldest first

A compact file replaces all earlier files, which Spark deletes later.
Other sources write a few small files when they start and never change them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import CheckpointError, CorruptCheckpointError
from holdfast.job.model import FileLog, SourcePosition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO


VERSION: Final = "v1"
COMPACT: Final = ".compact"
COMPACT_INTERVAL: Final = 10
"""Spark's default of `spark.sql.streaming.fileSource.log.compactInterval`."""
CHUNK: Final = 1 << 16
"""Bytes read at a time from the end of a compact file."""

_FILE_OFFSET: Final = re.compile(r'\{"logOffset":(\d+)\}')


class _Entry(msgspec.Struct):
    """The part of a log line that is needed here."""

    batchId: int


_entries = msgspec.json.Decoder(_Entry)


def read_source(
    directory: Path, offset: str | None, previous: str | None, since: SourcePosition | None
) -> SourcePosition:
    """The position of the source that keeps its files in `directory`.

    A file source's log is read from where `since` ends, and never beyond `offset`.
    """
    newest = _log_batch(directory, offset)
    if newest is None:
        return SourcePosition(offset, previous, files=_small_files(directory))
    after = since.log.upto if since is not None and since.log is not None else -1
    entries = tuple(_entries_between(directory, after, newest))
    return SourcePosition(offset, previous, FileLog(after, newest, entries))


def write_source(directory: Path, position: SourcePosition, compact_interval: int) -> None:
    """Write the files from which a source continues at `position`."""
    for name, text in position.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    if position.log is not None:
        _write_log(directory, position.log, compact_interval)


def _log_batch(directory: Path, offset: str | None) -> int | None:
    """The newest log batch of a file source; None for other sources."""
    match = _FILE_OFFSET.fullmatch(offset or "")
    if match is None:
        return None
    newest = int(match[1])
    # Another source may write its offsets the same way, but has no such log.
    found = (directory / str(newest)).exists() or (directory / f"{newest}{COMPACT}").exists()
    return newest if found else None


def _entries_between(directory: Path, after: int, upto: int) -> Iterator[str]:
    """The entries of log batches in (`after`, `upto`], oldest first."""
    parts: list[list[str]] = []
    for batch in range(upto, after, -1):
        try:
            parts.append(_checked(directory / str(batch)))
        except FileNotFoundError:
            parts.append(_compacted(directory / f"{batch}{COMPACT}", after))
            break
    for part in reversed(parts):
        yield from part


def _checked(path: Path) -> list[str]:
    """The entries of a file that holds one log batch."""
    version, *entries = path.read_text(encoding="utf-8").split("\n")
    _check_version(path, version)
    return entries


def _compacted(path: Path, after: int) -> list[str]:
    """The entries later than `after` of a compact file."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"the log of a file source has neither {path} nor the same without {COMPACT}; "
            "was Spark's query directory changed from outside?"
        ) from error
    newer: list[str] = []
    with file:
        _check_version(path, file.readline().decode().rstrip("\n"))
        # Entries are in order: read the new ones from the end.
        for line in lines_backwards(file, start=file.tell()):
            if _entries.decode(line).batchId <= after:
                break
            newer.append(line.decode())
    newer.reverse()
    return newer


def lines_backwards(file: BinaryIO, start: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """The lines of `file` from its last to the one at `start`, read in chunks of some bytes."""
    end = file.seek(0, 2)
    rest = b""
    while end > start:
        begin = max(start, end - chunk)
        file.seek(begin)
        first, *lines = (file.read(end - begin) + rest).split(b"\n")
        yield from reversed(lines)
        rest, end = first, begin
    if rest:
        yield rest


def _check_version(path: Path, version: str) -> None:
    if version != VERSION:
        raise CheckpointError(
            f"{path} begins with {version!r}; of Spark's logs only the format {VERSION} is known"
        )


def _write_log(directory: Path, log: FileLog, interval: int) -> None:
    if log.after != -1:
        raise CorruptCheckpointError(
            f"the log of a file source begins after log batch {log.after}; join it with the "
            "parts that earlier checkpoints hold"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # At a number at which Spark would compact: it derives the interval from it.
    compacted = (log.upto + 1) // interval * interval - 1
    old = [line for line in log.entries if _entries.decode(line).batchId <= compacted]
    if compacted >= 0:
        _write_lines(directory / f"{compacted}{COMPACT}", old)
    recent: dict[int, list[str]] = {batch: [] for batch in range(compacted + 1, log.upto + 1)}
    for line in log.entries[len(old) :]:
        recent[_entries.decode(line).batchId].append(line)
    for batch, lines in recent.items():
        _write_lines(directory / str(batch), lines)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join([VERSION, *lines]), encoding="utf-8")


def _small_files(directory: Path) -> dict[str, str]:
    # Names with a leading dot are checksums and unfinished files.
    return {
        path.relative_to(directory).as_posix(): _text(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"a source keeps {path}, which is not text and cannot be part of a checkpoint; "
            "this source cannot be used in a job that takes checkpoints"
        ) from error
