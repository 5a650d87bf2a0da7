"""Tables that are not what they should be are refused, with the reason."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import ListStateDescriptor, ValueStateDescriptor
from holdfast.errors import StateError, StoreFullError
from holdfast.state.tables.files import listed_file
from holdfast.state.tables.operator import read_operator_tables
from holdfast.state.tables.reader import TablesSnapshot
from holdfast.state.timers.table import EVENT_TIMERS
from tests.support.state_tables import State

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A directory of tables with a few hundred rows each."""
    state = State(tmp_path)
    value = state.register(ValueStateDescriptor("v", int))
    names = state.register(ListStateDescriptor("l", str))
    price = state.register(ValueStateDescriptor("d", Decimal))
    nested = state.register(ValueStateDescriptor("n", dict[str, list[tuple[Decimal, int | str]]]))
    for state.current.key in range(200):
        value.update(7)
        names.add_all(["x", "y"])
        price.update(Decimal("1.10"))
        nested.update({"a": [(Decimal(1), "b")]})
        state.keyed.timers(EVENT_TIMERS).register(state.current.key)
    return state.written()


def read(tables: Path) -> list[tuple[bytes, bytes]]:
    with TablesSnapshot(tables) as snapshot:
        return list(snapshot.scan(b""))


def changed(path: Path, columns: dict[str, Any], **about: Any) -> None:
    """Write a table anew, with other columns in place of some."""
    table = pq.read_table(path)
    metadata = {b"holdfast": msgspec.json.encode(described(table) | about)}
    for name, column in columns.items():
        if column is None:
            table = table.drop_columns([name])
        else:
            table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def described(table: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(table.schema.metadata[b"holdfast"])
    return found


def test_the_tables_themselves_are_read(tables: Path) -> None:
    assert len(read(tables)) == 6 + 5 * 200


@pytest.mark.parametrize("name", ["keyed/v", "keyed/l", "timers/event", "keyed_states"])
def test_a_table_that_is_not_there_is_refused(tables: Path, name: str) -> None:
    path = tables / f"{name}.parquet"
    path.unlink()
    with pytest.raises(StateError, match=f"{path}: this table of a savepoint is not there"):
        read(tables)


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    for opened in (TablesSnapshot, read_operator_tables):
        with pytest.raises(StateError, match="is not there"):
            opened(tmp_path / "nothing")


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_a_table_that_was_cut_off_is_refused(tables: Path, kept: float) -> None:
    path = tables / "keyed" / "v.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept if kept >= 1 else kept * len(data))])
    with pytest.raises(StateError, match=f"{path}: this is no whole table"):
        read(tables)


def test_a_table_in_which_any_byte_was_changed_is_refused_or_read_as_it_was(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    data, expected, refused = path.read_bytes(), read(tables), 0
    for at in range(0, len(data), 13):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            found = read(tables)
        except StateError:
            refused += 1
        else:
            # Bytes that nothing depends upon, such as who wrote the file.
            assert found == expected
    assert refused > 20


def test_a_file_of_another_kind_is_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    path.write_text("key,value\n1,2\n")
    with pytest.raises(StateError, match="this is no whole table of a savepoint"):
        read(tables)


@pytest.mark.parametrize(
    "metadata", [None, {"holdfast": "[]"}, {"holdfast": "no json"}, {"a": "b"}]
)
def test_a_parquet_file_that_does_not_describe_itself_is_refused(
    tables: Path, metadata: dict[str, str] | None
) -> None:
    path = tables / "keyed" / "v.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(StateError, match="does not say under 'holdfast' what is in it"):
        read(tables)


@pytest.mark.parametrize("name", ["keyed/v", "keyed_states"])
def test_a_table_of_a_later_format_is_refused(tables: Path, name: str) -> None:
    changed(tables / f"{name}.parquet", {}, format=3)
    message = "has format 3, and this release reads the formats 1 and 2 only"
    with pytest.raises(StateError, match=message):
        read(tables)


def test_tables_of_two_savepoints_are_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    changed(path, {}, version="2-other")
    with pytest.raises(StateError, match=r"at '2-other', and.*not of one savepoint"):
        read(tables)


def test_a_table_with_fewer_rows_than_listed_is_refused(tables: Path) -> None:
    path = tables / "timers" / "event.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 199), path)
    with pytest.raises(StateError, match=r"'rows': 199.* lists that of .*'rows': 200"):
        read(tables)


def test_a_state_of_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    state = State(tmp_path)
    described = msgspec.json.encode({"id": 1, "kind": "graph", "schema": []})
    state.keyed._store.write([(b"\x00\x00statev", described)])
    with pytest.raises(StateError, match="'v' is of a kind that this Holdfast does not know"):
        state.written()
    assert not (tmp_path / "tables").exists()


def test_a_table_that_says_of_its_state_what_cannot_be_understood_is_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    state = described(pq.read_table(path))["state"]
    others: list[dict[str, Any]] = [{"id": "x"}, {"schema": []}, {"schema": ["int"]}]
    for other in others:
        changed(path, {}, state=state | other)
        with pytest.raises(StateError, match="description of its state cannot be read"):
            read(tables)


@pytest.mark.parametrize(
    ("name", "column", "content"),
    [
        ("keyed/v", "key", None),
        ("keyed/v", "value", None),
        ("keyed/v", "key_group", None),
        ("keyed/v", "key", pa.nulls(200, pa.int64())),
        ("keyed/v", "key", pa.array([[1]] * 200)),
        ("keyed/v", "key_group", pa.nulls(200, pa.int32())),
        ("keyed/v", "value", pa.array([[1]] * 200)),
        ("keyed/v", "value", pa.array([Decimal(1)] * 200)),
        ("keyed/d", "value", pa.array([Decimal(1)] * 200, pa.decimal128(9, 2))),
        ("keyed/d", "value", pa.array([1.5] * 200)),
        ("keyed/n", "value", pa.array([1] * 200)),
        ("keyed/l", "position", None),
        ("timers/event", "timestamp", pa.nulls(200, pa.timestamp("ms"))),
    ],
)
def test_a_table_without_its_columns_is_refused(
    tables: Path, name: str, column: str, content: Any
) -> None:
    changed(tables / f"{name}.parquet", {column: content})
    with pytest.raises(StateError, match="does not have the expected columns"):
        read(tables)


@pytest.mark.parametrize("digits", [{}, {"value": []}, {"value": [1, 1]}, {"value": ["1"]}])
def test_a_table_that_does_not_say_the_digits_of_its_decimals_is_refused(
    tables: Path, digits: Any
) -> None:
    changed(tables / "keyed" / "d.parquet", {}, digits=digits)
    with pytest.raises(StateError, match="description of its state cannot be read"):
        read(tables)


def test_a_table_that_says_more_digits_than_its_decimals_have_is_refused(tables: Path) -> None:
    changed(tables / "keyed" / "d.parquet", {}, digits={"value": [19]})
    with pytest.raises(StateError, match="does not have the expected columns"):
        read(tables)


@pytest.mark.parametrize(
    "value",
    [
        [("a", [{"_1": "x", "_2": None}])],
        [("a", [{"_1": Decimal(1), "_2": {"int": 1}}])],
        [("a", [{"_1": Decimal(1), "_2": {"str": "b", "int": 1}}])],
        [("a", [{"_2": {"int": 1, "str": "b"}, "_1": Decimal(1)}])],
        [("a", [Decimal(1)])],
        [("a", Decimal(1))],
        [(b"a", [{"_1": Decimal(1), "_2": {"int": 1, "str": "b"}}])],
    ],
    ids=str,
)
def test_nested_values_of_another_type_are_refused(tables: Path, value: Any) -> None:
    path = tables / "keyed" / "n.parquet"
    key, item = value[0]
    column = pa.map_(pa.array([key]).type, pa.array([item]).type)
    changed(path, {"value": pa.array([value] * 200, column)})
    with pytest.raises(StateError, match="does not have the expected columns"):
        read(tables)


def test_a_struct_with_fields_of_other_names_is_refused(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = 1
    state.register(ValueStateDescriptor("v", tuple[int, int])).update((1, 2))
    tables = state.written()
    assert read(tables)
    changed(tables / "keyed" / "v.parquet", {"value": pa.array([{"_2": 1, "_1": 2}])})
    with pytest.raises(StateError, match="does not have the expected columns"):
        read(tables)


def test_a_row_without_a_value_is_refused(tables: Path) -> None:
    changed(tables / "keyed" / "v.parquet", {"value": pa.array([None, *range(199)], pa.int64())})
    with pytest.raises(StateError, match="has neither a value nor encoded bytes"):
        read(tables)


def test_rows_in_another_order_are_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(0, 1)]), path)
    with pytest.raises(StateError, match="the rows are not in the order of the store"):
        read(tables)


def test_row_groups_in_another_order_are_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    table = pq.read_table(path)
    with pq.ParquetWriter(path, table.schema) as writer:
        for start in (100, 0):
            writer.write_table(table.slice(start, 100))
    with pytest.raises(StateError, match="the rows are not in the order of the store"):
        read(tables)
    with TablesSnapshot(tables) as snapshot:
        assert snapshot.version == "1-test"


def test_rows_of_other_key_groups_between_those_that_are_wanted_are_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(199), table.slice(0, 199)]), path)
    with TablesSnapshot(tables) as snapshot:
        for stop, refused in ((b"\x00\x01\x00\x10", False), (None, True)):
            found = snapshot.scan(b"\x00\x01", b"\x00\x01\x00\x05", stop)
            if refused:
                with pytest.raises(StateError, match="not in the order of the store"):
                    list(found)
            else:
                assert list(found)


def test_rows_that_are_there_twice_are_refused(tables: Path) -> None:
    path = tables / "keyed" / "v.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, 1), table.slice(0, 199)]), path)
    with pytest.raises(StateError, match="or one is there twice"):
        read(tables)


@pytest.mark.parametrize("first", [[1, 0], [0, 0], [0, 2], [1, 2]])
def test_elements_at_other_positions_are_refused(tables: Path, first: list[int]) -> None:
    path = tables / "keyed" / "l.parquet"
    positions = pa.array([*first, *pq.read_table(path)["position"].to_pylist()[2:]])
    changed(path, {"position": positions})
    with pytest.raises(StateError, match="not at the positions 0, 1, 2"):
        read(tables)


def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "ParquetWriter", full)
    state = State(tmp_path)
    with pytest.raises(StoreFullError, match=r"cannot be written.*free space on the disk"):
        state.written()
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("table", ["../other", "/etc/passwd", "keyed/../../x", "keyed//x", ""])
def test_an_index_leads_to_no_file_elsewhere(tmp_path: Path, table: str) -> None:
    with pytest.raises(StateError, match="a name that leads elsewhere"):
        listed_file(tmp_path, table)
    assert listed_file(tmp_path, "keyed/v.ttl") == tmp_path / "keyed" / "v.ttl.parquet"
