"""Whatever is written is read: for any type, and for any value."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import OutputTypeError
from holdfast.types.arrow import array_of, map_of
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.event import event_class
from holdfast.types.stream_type import StreamType

EARLY, LATE = datetime(1, 1, 3), datetime(9999, 12, 29)
ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "+05:30", "-00:15"]
INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def zone_named(name):
    if name == "UTC":
        return UTC
    if name[0] not in "+-":
        return ZoneInfo(name)
    offset = timedelta(hours=int(name[1:3]), minutes=int(name[4:]))
    return timezone(-offset if name[0] == "-" else offset)


def moments(name):
    """Datetimes in a zone, both hours of a clock set back among them."""
    instants = st.datetimes(EARLY, LATE) | st.datetimes(
        datetime(2024, 1, 1), datetime(2024, 12, 31)
    )
    return instants.map(
        lambda naive: naive.replace(tzinfo=UTC, fold=0).astimezone(zone_named(name))
    )


def unfolded(moment):
    """A time without a zone happens once, so a column does not keep its `fold`."""
    return moment.replace(fold=0)


def integers(bits):
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def decimals(precision, scale):
    units = st.integers(-(10**precision) + 1, 10**precision - 1)
    return units.map(lambda unit: Decimal(unit).scaleb(-scale).quantize(Decimal(1).scaleb(-scale)))


hashable = st.one_of(
    st.just((pa.bool_(), st.booleans())),
    st.sampled_from(sorted(INTEGERS)).map(lambda bits: (INTEGERS[bits], integers(bits))),
    st.just((pa.string(), text)),
    st.just((pa.large_string(), text)),
    st.just((pa.binary(), st.binary(max_size=5))),
    st.just((pa.date32(), st.dates())),
    st.sampled_from([(5, 2), (18, 0), (28, 10)]).map(
        lambda digits: (pa.decimal128(*digits), decimals(*digits))
    ),
    st.just((pa.timestamp("us"), st.datetimes().map(unfolded))),
)

leaves = st.one_of(
    hashable,
    st.just((pa.float64(), st.floats())),
    st.just((pa.float32(), st.floats(width=32))),
    st.just((pa.large_binary(), st.binary(max_size=5))),
    st.just((pa.time64("ns"), st.times().map(unfolded))),
    st.sampled_from(ZONES).map(lambda name: (pa.timestamp("us", tz=name), moments(name))),
    st.just((pa.null(), st.none())),
)


def or_none(values, nullable):
    return st.none() | values if nullable else values


@st.composite
def lists(draw, inner):
    column, values = draw(inner)
    nullable = draw(st.booleans()) or column == pa.null()
    make = draw(st.sampled_from([array_of, large_array_of]))
    items = st.lists(or_none(values, nullable), max_size=3)
    return make(column, nullable=nullable), items


def large_array_of(column, *, nullable):
    return pa.large_list(pa.field("element", column, nullable=nullable))


@st.composite
def maps(draw, inner):
    key, keys = draw(hashable)
    column, values = draw(inner)
    nullable = draw(st.booleans()) or column == pa.null()
    items = st.dictionaries(keys, or_none(values, nullable), max_size=3)
    return map_of(key, column, nullable=nullable), items


@st.composite
def structs(draw, inner):
    fields = draw(st.lists(st.tuples(text, inner, st.booleans()), min_size=1, max_size=3))
    fields = list({name: (name, *rest) for name, *rest in fields}.values())
    columns, values = [], []
    for name, (column, strategy), optional in fields:
        nullable = optional or column == pa.null()
        columns.append(pa.field(name, column, nullable=nullable))
        values.append(or_none(strategy, nullable))
    cls = event_class(tuple(field.name for field in columns))
    return pa.struct(columns), st.tuples(*values).map(cls)


columns = st.recursive(
    leaves, lambda inner: lists(inner) | maps(inner) | structs(inner), max_leaves=4
)


@st.composite
def streams(draw):
    """A stream type, and elements of it as a reader gives them."""
    column, values = draw(columns)
    stream = StreamType.of(column)
    if stream.kind == "value":
        values = st.none() | values
    return stream, draw(st.lists(values, max_size=6))


def same(left, right):
    """Equal and of the same classes; NaN is the same as NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, datetime):
        return (left, left.fold, left.tzinfo) == (right, right.fold, right.tzinfo) or (
            # By Python's rules, datetimes in a repeated hour differ even from themselves
            # in another object of the zone.
            left.replace(tzinfo=None) == right.replace(tzinfo=None)
            and (left.fold, left.utcoffset()) == (right.fold, right.utcoffset())
        )
    return left == right and str(left) == str(right)


@given(streams())
def test_what_is_written_is_read(drawn):
    stream, elements = drawn
    batch = BatchWriter(stream).batch(elements)
    batch.validate(full=True)
    assert batch.schema == stream.schema
    assert same(BatchReader(stream).elements(batch), elements)


@given(streams(), st.data())
def test_a_slice_is_read_as_the_slice_of_what_was_written(drawn, data):
    stream, elements = drawn
    start = data.draw(st.integers(0, len(elements)))
    length = data.draw(st.integers(0, len(elements) - start))
    batch = BatchWriter(stream).batch(elements).slice(start, length)
    assert same(BatchReader(stream).elements(batch), elements[start : start + length])


@given(streams())
def test_normalised_elements_are_what_would_be_read(drawn):
    stream, elements = drawn
    plain = [plainly(element) for element in elements]
    read = BatchReader(stream).elements(BatchWriter(stream).batch(plain))
    assert same(BatchWriter(stream).normalise(plain), read)
    assert same(BatchWriter(stream).normalise(elements), read)


def plainly(value):
    """The value with tuples in the place of events."""
    if isinstance(value, list | tuple):
        return (
            type(value)(map(plainly, value)) if type(value) is list else tuple(map(plainly, value))
        )
    return {key: plainly(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(st.lists(text, max_size=40), st.lists(st.integers(0, 39), max_size=60))
def test_repeated_strings_are_read_as_they_are(words, places):
    stream = StreamType.of("string")
    elements = [words[place] if place < len(words) else None for place in places]
    batch = BatchWriter(stream).batch(elements)
    reader = BatchReader(stream)
    assert reader.elements(batch) == reader.elements(batch) == elements
    encoded = pa.record_batch([batch.column(0).dictionary_encode()], names=["value"])
    assert reader.elements(encoded) == elements


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-300, 300),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin")])),
    st.times(),
    st.decimals(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@given(leaves.filter(lambda leaf: leaf[0] != pa.float32()), st.lists(scalars, max_size=3))
def test_any_value_is_either_refused_or_read_as_an_equal_one(leaf, values):
    stream = StreamType.of(leaf[0])
    try:
        batch = BatchWriter(stream).batch(values)
    except OutputTypeError as error:
        if error.row_index not in range(len(values)):
            raise
        return
    for written, read in zip(values, BatchReader(stream).elements(batch), strict=True):
        assert as_instant(read) == as_instant(written) or same(read, written)
        assert not isinstance(written, bool) or isinstance(read, bool)
        assert not isinstance(read, date) or type(read) is type(written)


def as_instant(value):
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC) if aware else value
