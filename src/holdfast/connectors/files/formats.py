"""Writes rows as Parquet, JSON lines or CSV.

**Parquet** holds every type exactly.

**JSON lines** has one object per line, as Spark's own writer makes it, so that
`spark.read.schema(...).json(path)` gives the same values back: fields that are null are
left out (in lists and maps they are `null`), decimals are numbers with all their digits,
binary is Base64, dates and timestamps are ISO 8601 (with a zone: in UTC, ending in `Z`),
and NaN and the infinities are the texts "NaN", "Infinity" and "-Infinity". Unlike
Spark's, its timestamps keep their microseconds.

**CSV** follows RFC 4180: a line of column names first, text in quotes, a quote in a text
doubled. Null is nothing, and the empty text is `""`. Timestamps with a zone are in UTC
and end in `Z`. In Spark, read it with `header=True, escape='"', multiLine=True`; where
empty texts are to differ from null with `nullValue=chr(0)`; and where floats may not be
finite with `nanValue="nan", positiveInf="inf", negativeInf="-inf"`.
"""

from __future__ import annotations

import difflib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import csv, parquet

from holdfast.connectors.json_values import json_float
from holdfast.errors import ConfigurationError
from holdfast.types.arrow import ddl_of, is_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Converter: TypeAlias = Callable[[Any], Any] | None

_SUFFIXES: Final = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}
"""Suffixes of text files, by compression."""


class RowsEncoder(Protocol):
    """Turns rows into the content of one file."""

    def write(self, rows: pa.Table) -> None:
        """Append rows."""

    def finish(self) -> None:
        """Write the rest of the file; the stream stays open."""


@dataclass(frozen=True)
class FileFormat:
    """One kind of file."""

    name: str
    compressions: tuple[str, ...]
    """Supported compressions, the default first."""
    suffixes: Mapping[str, str]
    """How the names of its files end, by compression."""
    bulk: bool
    """Whether rows are written many at a time, as columns."""
    refusal: Callable[[pa.Field], str | None]
    """The reason why it cannot hold a column; None if it can."""
    encoder: Callable[[BinaryIO, pa.Schema, str], RowsEncoder]
    """Makes the encoder of a file: stream, columns, compression."""

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigurationError if files cannot hold these columns."""
        for field in schema:
            if (reason := self.refusal(field)) is not None:
                other = "" if self.bulk else ", or write parquet"
                raise ConfigurationError(
                    f"column {field.name!r} is {ddl_of(field.type)}: {reason}{other}"
                )

    def checked_compression(self, compression: str | None) -> str:
        """The compression to use; ConfigurationError if there is none of that name."""
        if compression is None:
            return self.compressions[0]
        if compression not in self.compressions:
            raise ConfigurationError(
                f"{self.name} files cannot be compressed with {compression!r}; use "
                f"{', '.join(self.compressions)}{_nearest(compression, self.compressions)}"
            )
        return compression


def file_format(name: str) -> FileFormat:
    """The format of that name.

    Raises:
        ConfigurationError: There is none.
    """
    if name not in FORMATS:
        raise ConfigurationError(
            f"there is no file format {name!r}; use {', '.join(FORMATS)}{_nearest(name, FORMATS)}"
        )
    return FORMATS[name]


def _nearest(given: str, known: Any) -> str:
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


class _ParquetEncoder:
    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._writer = parquet.ParquetWriter(stream, schema, compression=compression)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def finish(self) -> None:
        self._writer.close()


class _TextEncoder:
    """Base of the encoders of text files, which may be compressed."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._schema = pa.schema([(field.name, _plain(field.type)) for field in schema])
        self._stream: Any = stream
        if compression != "none":
            self._stream = pa.CompressedOutputStream(stream, compression)

    def finish(self) -> None:
        if isinstance(self._stream, pa.NativeFile):
            self._stream.close()


class _CsvEncoder(_TextEncoder):
    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        super().__init__(stream, schema, compression)
        self._writer = csv.CSVWriter(self._stream, self._schema)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.cast(self._schema, safe=False))

    def finish(self) -> None:
        self._writer.close()
        super().finish()


class _JsonEncoder(_TextEncoder):
    def __init__(self, stream: BinaryIO, schema: pa.Schema, compression: str) -> None:
        super().__init__(stream, schema, compression)
        self._convert = _struct_converter(list(self._schema))
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def write(self, rows: pa.Table) -> None:
        for batch in rows.cast(self._schema, safe=False).to_batches(max_chunksize=4096):
            objects = map(self._convert, batch.to_pylist())
            self._stream.write(self._encoder.encode_lines(objects))


def _plain(column: pa.DataType) -> pa.DataType:
    """The type in text files: timestamps in microseconds, those with a zone in UTC."""
    of = pa.types
    if of.is_timestamp(column):
        return pa.timestamp("us", tz="UTC" if column.tz else None)
    if of.is_dictionary(column):
        return _plain(column.value_type)
    if of.is_struct(column):
        return pa.struct([field.with_type(_plain(field.type)) for field in column])
    if of.is_map(column):
        key, item = column.key_field, column.item_field
        return pa.map_(key.with_type(_plain(key.type)), item.with_type(_plain(item.type)))
    if of.is_list(column) or of.is_large_list(column):
        element = column.value_field
        return pa.list_(element.with_type(_plain(element.type)))
    return column


def _struct_converter(fields: list[pa.Field]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    by_name = {field.name: _converter(field.type) for field in fields}
    converters = {name: convert for name, convert in by_name.items() if convert is not None}

    def convert_struct(values: dict[str, Any]) -> dict[str, Any]:
        present = {name: value for name, value in values.items() if value is not None}
        for name, convert in converters.items():
            if name in present:
                present[name] = convert(present[name])
        return present

    return convert_struct


def _converter(column: pa.DataType) -> Converter:
    """Converts values of a type for the encoder; None if nothing is to do."""
    of = pa.types
    if of.is_floating(column):
        return json_float
    if of.is_struct(column):
        return _struct_converter(list(column))
    if of.is_map(column):
        convert_item = _or_none(_converter(column.item_type))
        return lambda pairs: {key: convert_item(item) for key, item in pairs}
    if of.is_list(column):
        convert_element = _or_none(_converter(column.value_type))
        return lambda elements: [convert_element(element) for element in elements]
    return None


def _or_none(convert: Converter) -> Callable[[Any], Any]:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _refused_by_parquet(field: pa.Field) -> str | None:
    try:
        parquet.ParquetWriter(io.BytesIO(), pa.schema([field])).close()
    except pa.ArrowException as error:
        return f"parquet cannot hold it ({error}); convert it before the sink"
    return None


def _refused_by_csv(field: pa.Field) -> str | None:
    of = pa.types
    if of.is_nested(field.type):
        return "CSV has no nested columns; make columns of its parts"
    if is_binary(field.type):
        return "CSV is text; encode it before the sink, as Base64 for example"
    if of.is_duration(field.type) or of.is_interval(field.type):
        return "CSV has no durations; convert it to a number before the sink"
    return None


def _refused_by_json(field: pa.Field) -> str | None:
    of, column = pa.types, field.type
    if of.is_duration(column) or of.is_interval(column):
        return "JSON has no durations; convert it to a number before the sink"
    if of.is_map(column):
        if not (of.is_string(column.key_type) or of.is_large_string(column.key_type)):
            return "the keys of a JSON object are texts; convert the keys before the sink"
        return _refused_by_json(column.item_field)
    if of.is_struct(column):
        return next(filter(None, map(_refused_by_json, column)), None)
    if of.is_list(column) or of.is_large_list(column):
        return _refused_by_json(column.value_field)
    if of.is_nested(column):
        return "there is no JSON form for it; convert it before the sink"
    return None


_PARQUET: Final = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


def _text_format(name: str, refusal: Any, encoder: Any) -> FileFormat:
    suffixes = {compression: f".{name}{suffix}" for compression, suffix in _SUFFIXES.items()}
    return FileFormat(name, tuple(_SUFFIXES), suffixes, False, refusal, encoder)


FORMATS: Final = {
    "parquet": FileFormat(
        name="parquet",
        compressions=_PARQUET,
        suffixes=dict.fromkeys(_PARQUET, ".parquet"),
        bulk=True,
        refusal=_refused_by_parquet,
        encoder=_ParquetEncoder,
    ),
    "json": _text_format("json", _refused_by_json, _JsonEncoder),
    "csv": _text_format("csv", _refused_by_csv, _CsvEncoder),
}
"""All formats, by name."""
