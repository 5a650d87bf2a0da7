r"""The content of `_metadata`, and its format on disk.

The file is text: one line of JSON, the header, then a JSON document, the body.

    {"holdfast":"checkpoint","format":5,"version":...,"checkpoint_id":...,"fence":...,
     "length":...,"checksum":...}\n              (all on one line)
    {...}

`length` and `checksum` (XXH3-128, hexadecimal) cover all bytes after the first line break. They
distinguish a file that was cut off from one that was damaged. The first bytes distinguish both from
a foreign file. Bytes are written in base64.

Fields may be added to the body within a format; readers ignore fields that they do not know. The
file holds no credentials: handles are relative to the job's directory, and the values of
properties with names like "password" are replaced by asterisks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from holdfast.errors import CorruptCheckpointError
from holdfast.storage.handles import FileHandle, Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = 5
"""Number of the format, for checkpoints and savepoints alike."""
READABLE: Final = frozenset({4, FORMAT})
"""Formats that this release reads."""

LONGEST_HEADER: Final = 1024
"""The header ends within this number of bytes."""

_MAGIC: Final = b'{"holdfast":"checkpoint",'
_SECRETS: Final = ("password", "secret", "token", "credential", "apikey", "api-key", "access-key")
_BLANK: Final = "******"


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one subtask of one operator."""

    subtask: int
    backend: Literal["hashmap", "rocksdb", "canonical"]
    """The state backend that wrote the files, or "canonical" for the tables of a savepoint."""
    version: str
    """Version of the local store."""
    key_groups: tuple[int, int] | None
    """First and last key group, both included; None without keys."""
    files: dict[str, Handle]
    """By name in the local snapshot directory."""
    full_size: int
    """Bytes of all files, including those of earlier checkpoints."""
    uploaded_size: int
    """Bytes uploaded for this checkpoint."""
    operator_state: Handle | None = None
    operator_tables: dict[str, Handle] | UnsetType = UNSET
    """Operator state as tables, by name in their directory; in a canonical savepoint."""


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one operator."""

    uid: str
    name: str
    made_at: str = ""
    """File and line of the program that made it; format 4 has none."""
    parallelism: int
    max_parallelism: int
    states: list[dict[str, Any]]
    """Name, kind and schema of every state."""
    key: str | None
    """Name of the key shape; None without keys."""
    subtasks: list[StoreSnapshot]


class SourceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How far one source was read; the source layer interprets it."""

    uid: str
    name: str = ""
    """Format 4 has none."""
    made_at: str = ""
    """File and line of the program that made it; format 4 has none."""
    position: Any
    """Anything that JSON can hold."""
    logs: dict[str, list[Handle]] = {}


class StagedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in checkpoint storage, as an Arrow IPC stream."""

    handle: Handle
    rows: int


class Committable(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one subtask's epoch that is staged but not published."""

    uid: str
    """Uid of the sink."""
    checkpoint_id: int
    """The checkpoint that publishes it."""
    epoch: int
    subtask: int
    attempt: int = 0
    """The task attempt that was acknowledged."""
    data: bytes = b""
    """Encoded for the sink's committer."""
    rows: StagedHandle | None = None
    """Rows in checkpoint storage, for sinks that stage rows."""


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """Input of one subtask that an unaligned checkpoint stores unprocessed."""

    uid: str
    """Uid of the operator that reads it."""
    input: int
    """Index of the operator's input channel."""
    subtask: int
    parallelism: int
    """Parallelism of the operator."""
    max_parallelism: int
    """Max parallelism of the operator."""
    rows: StagedHandle


class StoredEventTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How far event time had advanced."""

    sources: dict[str, int] = {}
    """Watermark of every time source, by uid."""
    quiet_ms: dict[str, int] = {}
    """For how long looks found no rows of a time source that can become idle, by uid."""
    operators: dict[str, int] = {}
    """Watermark of every operator with event time, by uid."""


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One complete checkpoint or savepoint."""

    format: int = FORMAT
    version: str
    """Release of Holdfast that wrote it."""
    checkpoint_id: int
    job_id: str
    job_name: str
    lineage: str = ""
    """Names the series of checkpoints since the job started without state."""
    fence: int
    """Number of the fence under which it was written."""
    job_attempt: str
    epoch: int
    batch_id: int
    """Last micro-batch that it contains completely."""
    triggered_ms: int
    completed_ms: int
    mode: str
    is_savepoint: bool = False
    """Whether it is a savepoint: its handles are relative to its own directory, and its state
    may be stored as tables."""
    origin: str | UnsetType = UNSET
    """Names the savepoint, or the other job's checkpoint, that the series began from."""
    drained: bool | UnsetType = UNSET
    """Whether event time was advanced to its end before, for a savepoint that was to end the job;
    never set in a savepoint."""
    operators: list[OperatorSnapshot] = []
    sources: list[SourceSnapshot] = []
    committables: list[Committable] = []
    """Output to be published, in the order of epochs."""
    stale_notes: list[str] | UnsetType = UNSET
    """Names of notes that could not be deleted although earlier checkpoints list their content."""
    channel_state: list[ChannelState] = []
    """Input to process before any other, in order."""
    event_times: StoredEventTimes = StoredEventTimes()
    """Format 4 has none: the watermarks of such a checkpoint begin at the minimum."""
    spark: dict[str, Any] = {}
    """Data of the Spark layer, as JSON."""
    properties: dict[str, str] = {}


class MetadataHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of the file: enough to order checkpoints without reading all of it."""

    holdfast: Literal["checkpoint"] = "checkpoint"
    format: int
    version: str
    checkpoint_id: int
    fence: int
    length: int
    checksum: str


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Encode metadata; equal metadata gives equal bytes."""
    properties = {key: _shown(key, value) for key, value in metadata.properties.items()}
    metadata = msgspec.structs.replace(metadata, properties=properties)
    compact = msgspec.json.encode(metadata, order="deterministic")
    body = msgspec.json.format(compact, indent=1) + b"\n"
    header = MetadataHeader(
        format=metadata.format,
        version=metadata.version,
        checkpoint_id=metadata.checkpoint_id,
        fence=metadata.fence,
        length=len(body),
        checksum=xxhash.xxh3_128_hexdigest(body),
    )
    return msgspec.json.encode(header) + b"\n" + body


def decode_header(data: bytes, where: str) -> MetadataHeader:
    """Decode the header of a file that begins with `data`; `where` is for error messages.

    Raises:
        CorruptCheckpointError: The file is cut off, foreign, damaged or of another format.
    """
    if not data.startswith(_MAGIC):
        if _MAGIC.startswith(data):
            raise _cut_off(where, f"it ends after {len(data)} bytes, within its first line")
        raise CorruptCheckpointError(
            f"{where}: this is not a Holdfast checkpoint: it starts with {data[:24]!r}; "
            "give the path of a checkpoint, or bring the file back from a backup"
        )
    line, found, _ = data[:LONGEST_HEADER].partition(b"\n")
    if not found:
        if len(data) < LONGEST_HEADER:
            raise _cut_off(where, f"it ends after {len(data)} bytes, within its first line")
        raise _damaged(where, "its first line does not end")
    _check_format(line, where)
    try:
        return msgspec.json.decode(line, type=MetadataHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(where, f"its first line cannot be read ({error})") from error


def decode_metadata(data: bytes, where: str) -> CheckpointMetadata:
    """Decode and verify metadata; `where` is for error messages.

    Raises:
        CorruptCheckpointError: The file is cut off, foreign, damaged or of another format.
    """
    header = decode_header(data, where)
    body = data[data.index(b"\n") + 1 :]
    if len(body) < header.length:
        raise _cut_off(where, f"its body has {len(body)} bytes of {header.length}")
    if len(body) > header.length:
        extra = len(body) - header.length
        raise _damaged(where, f"{extra} bytes follow behind its end")
    if xxhash.xxh3_128_hexdigest(body) != header.checksum:
        raise _damaged(where, "its body does not have the checksum that its first line names")
    try:
        metadata = msgspec.json.decode(body, type=CheckpointMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(where, f"its body is whole but cannot be read ({error})") from error
    named = (header.checkpoint_id, header.fence, header.format, header.version)
    if named != (metadata.checkpoint_id, metadata.fence, metadata.format, metadata.version):
        raise _damaged(where, "its first line and its body are of different checkpoints")
    return metadata


def handles_of(metadata: CheckpointMetadata) -> Iterator[tuple[str, Handle]]:
    """Yield every handle in `metadata` with a description."""
    for operator in metadata.operators:
        for store in operator.subtasks:
            owner = f"operator {operator.uid!r}, subtask {store.subtask}"
            for name, handle in store.files.items():
                yield f"file {name!r} of {owner}", handle
            if store.operator_state is not None:
                yield f"operator state of {owner}", store.operator_state
            for name, handle in (store.operator_tables or {}).items():
                yield f"table {name!r} of the operator state of {owner}", handle
    for source in metadata.sources:
        for name, handles in source.logs.items():
            for handle in handles:
                yield f"log {name!r} of source {source.uid!r}", handle
    for staged in metadata.committables:
        if staged.rows is not None:
            yield f"output of sink {staged.uid!r}, subtask {staged.subtask}", staged.rows.handle
    for left in metadata.channel_state:
        yield f"input of operator {left.uid!r}, subtask {left.subtask}", left.rows.handle


def identity_of(metadata: CheckpointMetadata) -> str:
    """Unique name of the checkpoint or savepoint, even if it is moved."""
    return f"{metadata.job_id}-{metadata.checkpoint_id}-{metadata.triggered_ms}"


def paths_of(metadata: CheckpointMetadata) -> set[str]:
    """Paths of all files that `metadata` refers to."""
    return {handle.path for _, handle in handles_of(metadata) if isinstance(handle, FileHandle)}


def _shown(key: str, value: str) -> str:
    return _BLANK if any(word in key.lower() for word in _SECRETS) else value


class _Format(msgspec.Struct):
    format: int
    version: str = "unknown"


def _check_format(line: bytes, where: str) -> None:
    # Another format may have another header; only these two fields are fixed.
    try:
        found = msgspec.json.decode(line, type=_Format)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(where, f"its first line cannot be read ({error})") from error
    if found.format not in READABLE:
        readable = ", ".join(map(str, sorted(READABLE)))
        raise CorruptCheckpointError(
            f"{where}: the checkpoint has format {found.format}, and this release reads format "
            f"{readable} only; Holdfast {found.version}, which wrote it, reads it"
        )


def _cut_off(where: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where}: the checkpoint's metadata was cut off: {what}; restore from another checkpoint"
    )


def _damaged(where: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where}: the checkpoint's metadata is damaged: {what}; restore from another checkpoint"
    )
