"""Which subtask receives a row, and under which key it is processed there."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.api.streams.graph import Partitioner, Partitioning
from holdfast.errors import KeyTypeError, NullKeyError, UserFunctionError
from holdfast.runtime.partitioners import AtRandom, KeyPartitioner, Keys, RoundRobin, partitioner
from holdfast.runtime.plan import Channel, KeyPlan
from holdfast.serde.keys import key_group_of
from holdfast.state.key_groups import subtask_of
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATOR = "operator 'up' (uid 'u'), subtask 1/2"
AT = datetime(2026, 11, 15, 4, 30, tzinfo=UTC)


class Pair(NamedTuple):
    k: str
    n: int


def by_key(spec: Any, *columns: int, **options: Any) -> Any:
    return partitioner(channel_by_key(spec, *columns, **options), 0, OPERATOR)


def channel_by_key(
    spec: Any,
    *columns: int,
    selector: Callable[[Any], Any] | None = None,
    parallelism: int = 3,
    max_parallelism: int = 128,
) -> Channel:
    stream = StreamType.of(spec)
    names = tuple(stream.columns[i] for i in columns)
    return Channel(
        id=0,
        type=stream,
        stage=1,
        partitioning=Partitioning(Partitioner.KEY, names, selector),
        key=KeyPlan(columns, selector),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )


def receivers(route: Any, spec: Any, elements: list[Any]) -> list[int]:
    subtasks = route.subtasks(elements, BatchWriter(StreamType.of(spec)).batch(elements))
    return list(subtasks.to_pylist())


# By key


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("k string", ["a", "", "ü" * 300]),
        ("k bigint", [0, -1, 2**62]),
        ("k int", [5, -5]),
        ("k boolean", [True, False]),
        ("k double", [0.0, -0.0, float("nan"), 1.5]),
        ("k binary", [b"", b"\x00\xff"]),
        ("k date", [date(2026, 11, 15), date(1969, 12, 31)]),
        ("k timestamp", [AT, AT + timedelta(microseconds=1)]),
        ("k timestamp_ntz", [datetime(1969, 12, 31, 23)]),
        ("k decimal(10,2)", [Decimal("1.10"), Decimal("-3.00")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_and_a_function_send_a_row_to_the_subtask_of_its_key_group(
    spec: str, keys: list[Any]
) -> None:
    rows = [(key,) for key in keys]
    expected = [subtask_of(key_group_of(key, 128), 3, 128) for key in keys]
    assert receivers(by_key(spec, 0), spec, rows) == expected
    assert receivers(by_key(spec, selector=lambda row: row.k), spec, rows) == expected


def test_several_columns_and_a_function_that_returns_a_tuple_agree() -> None:
    spec = "a string, b bigint"
    rows = [("x", 1), ("x", None), (None, 1), (None, None)]
    expected = [subtask_of(key_group_of(row, 128), 3, 128) for row in rows]
    assert receivers(by_key(spec, 0, 1), spec, rows) == expected
    by_function = by_key(spec, selector=lambda row: (row.a, row.b))
    assert receivers(by_function, spec, rows) == expected
    by_row = by_key(spec, selector=lambda row: Pair(row.a, row.b))
    assert receivers(by_row, spec, rows) == expected


def test_a_key_function_sees_elements_as_the_receiver_will() -> None:
    seen: list[Any] = []

    def key(row: Any) -> str:
        seen.append(row)
        return str(row.k)

    spec = "k string, n bigint"
    given = [("a", 1), {"n": 2, "k": "b"}, Pair("c", 3)]
    receivers(by_key(spec, selector=key), spec, given)
    assert seen == [("a", 1), ("b", 2), ("c", 3)]
    assert {type(row).__name__ for row in seen} == {"Event"}


def test_a_column_key_never_needs_the_elements() -> None:
    assert not by_key("k string", 0).needs_elements
    assert by_key("k string", selector=str).needs_elements
    assert not RoundRobin(2, 0).needs_elements
    assert not AtRandom(2, 0).needs_elements


def test_every_key_group_has_its_subtask() -> None:
    route = by_key(int, selector=lambda n: n, parallelism=5, max_parallelism=7)
    found = receivers(route, int, list(range(200)))
    assert set(found) == {0, 1, 2, 3, 4}
    assert found == [subtask_of(key_group_of(n, 7), 5, 7) for n in range(200)]


def test_keys_are_remembered_only_up_to_a_limit() -> None:
    channel = channel_by_key(int, selector=lambda n: n)
    assert channel.key is not None
    route = KeyPartitioner(channel, Keys(channel.key, channel.type, OPERATOR), memory=10)
    expected = receivers(by_key(int, selector=lambda n: n), int, list(range(50)))
    for start in range(0, 50, 5):
        assert receivers(route, int, list(range(start, start + 5))) == expected[start : start + 5]
        assert len(route._known) <= 15


# Keys


def keys_of(spec: Any, elements: list[Any], *columns: int, selector: Any = None) -> list[Any]:
    stream = StreamType.of(spec)
    keys = Keys(KeyPlan(columns, selector), stream, OPERATOR)
    if selector is not None:
        return keys.of_elements(elements)
    return keys.of_rows(BatchWriter(stream).batch(elements))


def test_one_column_gives_its_value_and_several_a_tuple() -> None:
    rows = [("a", 1), ("b", 2)]
    assert keys_of("k string, n bigint", rows, 1) == [1, 2]
    assert keys_of("k string, n bigint", rows, 1, 0) == [(1, "a"), (2, "b")]


def test_keys_come_in_the_form_that_dictionaries_tell_apart() -> None:
    nan = float("nan")
    keys = keys_of(Any, [-0.0, 0.0, nan, -nan, (nan, -0.0), (nan, 0.0)], selector=lambda e: e)
    assert len(dict.fromkeys(keys[:4])) == 2
    assert keys[2] is keys[3]
    assert keys[4] == keys[5]
    [named] = keys_of(Any, [Pair("a", 1)], selector=lambda e: e)
    assert type(named) is tuple


def test_equal_instants_and_decimals_are_one_key() -> None:
    elsewhere = AT.astimezone(timezone(timedelta(hours=8)))
    keys = keys_of(Any, [AT, elsewhere, Decimal("1.10"), Decimal("1.1")], selector=lambda e: e)
    assert len(dict.fromkeys(keys)) == 2


@pytest.mark.parametrize("by", [{"selector": lambda row: row.k}, {"columns": (0,)}])
def test_a_null_key_is_refused_with_its_row(by: Any) -> None:
    route = by_key("k string, n bigint", *by.get("columns", ()), selector=by.get("selector"))
    with pytest.raises(NullKeyError) as caught:
        receivers(route, "k string, n bigint", [("a", 1), (None, 7)])
    text = str(caught.value)
    assert text.startswith(f"key_by after {OPERATOR}")
    assert "7" in text
    assert "filter such rows out before key_by" in text


def test_a_key_function_that_raises_is_named_with_its_row() -> None:
    with pytest.raises(UserFunctionError) as caught:
        keys_of(int, [1, 2, 0, 3], selector=lambda n: 6 // n)
    text = str(caught.value)
    assert text.startswith(f"{OPERATOR}, in the key function: ZeroDivisionError")
    assert "row: 0" in text
    assert "test_partitioners.py" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ([1], "list cannot be a key"),
        ({"a": 1}, "dict cannot be a key"),
        (object(), "object cannot be a key"),
        ((1, [2]), "list cannot be a key"),
        (2**63, "does not fit into 64 bits"),
        (Decimal("NaN"), "not a finite number"),
        (((1, 2), 3), "nests a tuple in a tuple"),
    ],
    ids=["list", "dict", "object", "list in a tuple", "large", "NaN", "nested"],
)
def test_what_cannot_be_a_key_is_refused_with_the_operator(key: Any, said: str) -> None:
    route = by_key(int, selector=lambda n: key)
    with pytest.raises(KeyTypeError, match=said) as caught:
        receivers(route, int, [1, 2])
    assert str(caught.value).startswith(f"key_by after {OPERATOR}")
    assert "row: 1" in str(caught.value)


# In turn and at random


def channel(partitioner: Partitioner, parallelism: int) -> Channel:
    return Channel(0, StreamType.of(int), 1, Partitioning(partitioner), None, parallelism, 128)


def test_rows_are_dealt_out_in_turn_over_all_batches() -> None:
    route = partitioner(channel(Partitioner.REBALANCE, 3), 0, OPERATOR)
    dealt = [receivers(route, int, list(range(size))) for size in (4, 1, 3, 2)]
    assert dealt == [[0, 1, 2, 0], [1], [2, 0, 1], [2, 0]]


def test_every_sender_begins_with_another_receiver() -> None:
    starts = [
        receivers(partitioner(channel(Partitioner.REBALANCE, 3), i, OPERATOR), int, [0])[0]
        for i in range(5)
    ]
    assert starts == [0, 1, 2, 0, 1]


def test_rows_at_random_reach_every_subtask_and_the_same_one_when_repeated() -> None:
    def dealt(subtask: int) -> list[int]:
        route = partitioner(channel(Partitioner.SHUFFLE, 4), subtask, OPERATOR)
        return receivers(route, int, list(range(400)))

    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2)
    assert dealt(1)[:40] != receivers(RoundRobin(4, 1), int, list(range(40)))
    counts = Counter(dealt(0))
    assert set(counts) == {0, 1, 2, 3}
    assert all(count > 50 for count in counts.values())
