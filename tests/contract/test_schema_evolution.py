"""State whose type changes between two runs of a program, over every backend."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import (
    AggregatingStateDescriptor,
    AvroSchema,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import StateDescriptorError, StateError, StateMigrationError
from holdfast.serde.factory import codec_for
from holdfast.serde.keys import key_group_of
from holdfast.serde.tagged import timestamped
from holdfast.serializers import StateCompatibility
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.operator.layout import SUBTASK_PREFIX
from holdfast.state.operator.redistribution import redistribute
from holdfast.state.restore import restore_store
from holdfast.state.schemas import MARK
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock
from tests.support.functions import Mean
from tests.support.subtask import Subtask, put, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.api.descriptors import StateDescriptor

TTL = StateTtlConfig.new_builder(100).build()
KINDS = ["value", "list", "map", "sum", "mean"]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)


def click(*fields: Any) -> type:
    """Some version of a class."""
    return make_dataclass("Click", fields, namespace={"__module__": __name__}, frozen=True)


V1 = click(("n", int), ("url", str))
V2 = click(("n", int), ("user", str, "nobody"))
V3 = click(("n", int | None), ("user", str | None, None), ("at", float, 0.5))
WRONG = click(("n", str), ("user", int))


class First(NamedTuple):
    """A version whose fields are told apart by their places."""

    n: int
    url: str


class Second(NamedTuple):
    """A later one."""

    user: str = "nobody"
    n: int = 0


def latest(old: Any, new: Any) -> Any:
    return new


class Newest(Mean):
    """An aggregate whose accumulator is the last value."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def descriptor(kind: str, spec: Any, ttl: StateTtlConfig | None = None) -> StateDescriptor:
    match kind:
        case "value":
            return ValueStateDescriptor(kind, spec, ttl=ttl)
        case "list":
            return ListStateDescriptor(kind, spec, ttl=ttl)
        case "map":
            return MapStateDescriptor(kind, str, spec, ttl=ttl)
        case "sum":
            return ReducingStateDescriptor(kind, latest, spec, ttl=ttl)
        case _:
            return AggregatingStateDescriptor(kind, Newest(), spec, ttl=ttl)


class Evolving(Subtask):
    """Keyed and operator state of one subtask, with a clock that stands still."""

    def __init__(self, backend: Any, directory: Path, version: str | None = None) -> None:
        self.clock = ManualClock(1000)
        super().__init__(backend, directory, version)

    def open(self) -> None:
        self.settings["ttl"] = TtlContext(ClockTime(self.clock))
        super().open()
        self.operator = OperatorStateBackend(self.store)
        self.key("a")

    def of(self, kind: str, spec: Any, ttl: StateTtlConfig | None = None) -> Any:
        return self.get(descriptor(kind, spec, ttl))

    def commit(self, snapshot: Path | None) -> Any:
        self.operator.flush()
        return super().commit(snapshot)


@pytest.fixture
def subtask(backend: Any, tmp_path: Path) -> Iterator[Evolving]:
    subtask = Evolving(backend, tmp_path / "store")
    yield subtask
    subtask.state.abort()


# One subtask


@EVERY_KIND
@pytest.mark.parametrize("ttl", [None, TTL], ids=["plain", "ttl"])
def test_old_values_are_read_as_new_ones_and_nothing_is_rewritten(
    subtask: Evolving, kind: str, ttl: StateTtlConfig | None
) -> None:
    put(subtask.of(kind, V1, ttl), kind, V1(7, "/a"))
    subtask.next_epoch()
    before = subtask.values()
    state = subtask.of(kind, V2, ttl)
    assert read(state, kind) == V2(7, "nobody")
    subtask.next_epoch()
    assert subtask.values() == before
    state = subtask.of(kind, V3, ttl)
    assert read(state, kind) == V3(7)
    put(state, kind, V3(None, "ann"))
    subtask.next_epoch()
    assert read(subtask.of(kind, V3, ttl), kind) == V3(None, "ann")


@EVERY_KIND
@pytest.mark.parametrize("ttl", [None, TTL], ids=["plain", "ttl"])
def test_values_of_three_types_lie_side_by_side(
    subtask: Evolving, kind: str, ttl: StateTtlConfig | None
) -> None:
    for key, value in (("a", V1(1, "/a")), ("b", V2(2, "bob")), ("c", V3(3, "cat"))):
        state = subtask.of(kind, type(value), ttl)
        subtask.current.key = key
        put(state, kind, value)
        subtask.next_epoch()
    state = subtask.of(kind, V3, ttl)
    found = []
    for subtask.current.key in "abc":
        found.append(read(state, kind))
    assert found == [V3(1), V3(2, "bob"), V3(3, "cat")]


def test_elements_of_a_list_are_each_read_as_they_were_written(subtask: Evolving) -> None:
    subtask.of("list", First).add_all([First(1, "/a"), First(2, "/b")])
    subtask.next_epoch()
    state = subtask.of("list", Second)
    state.add(Second("cat", 3))
    assert state.get() == [Second("nobody", 1), Second("nobody", 2), Second("cat", 3)]
    subtask.next_epoch()
    expected = [Second("nobody", 1), Second("nobody", 2), Second("cat", 3)]
    assert subtask.of("list", Second).get() == expected


def test_a_map_reads_each_entry_as_it_was_written(subtask: Evolving) -> None:
    subtask.of("map", First).put_all({"a": First(1, "/a"), "none": None})
    subtask.next_epoch()
    state = subtask.of("map", Second)
    state.put("b", Second("bob", 2))
    subtask.next_epoch()
    state = subtask.of("map", Second)
    assert dict(state.items()) == {"a": Second("nobody", 1), "none": None, "b": Second("bob", 2)}
    assert state.get("a") == Second("nobody", 1)


def test_a_state_that_never_changed_has_no_marks(subtask: Evolving) -> None:
    for kind in KINDS:
        put(subtask.of(kind, V1), kind, V1(7, "/a"))
    subtask.next_epoch()
    renamed = make_dataclass("Elsewhere", [("url", str), ("n", int, 0)], frozen=True)
    for kind in KINDS:
        put(subtask.of(kind, renamed), kind, renamed("/b", 8))
    subtask.next_epoch()
    assert not any(MARK in value for value in subtask.values())
    assert not any("others" in state for state in subtask.state.state_descriptions())
    assert read(subtask.of("value", V1), "value") == V1(8, "/b")


@EVERY_KIND
@pytest.mark.parametrize("ttl", [None, TTL], ids=["plain", "ttl"])
def test_a_refused_type_leaves_the_store_as_it_was(
    subtask: Evolving, kind: str, ttl: StateTtlConfig | None
) -> None:
    put(subtask.of(kind, V1, ttl), kind, V1(7, "/a"))
    subtask.next_epoch()
    before = subtask.content()
    for other in (ttl, None if ttl else TTL):
        with pytest.raises(StateMigrationError) as caught:
            subtask.of(kind, WRONG, other)
        assert str(caught.value).splitlines()[:3] == [
            f"state {kind!r} was written with the type of an earlier program and cannot be read "
            "as the type that is declared now:",
            "  Click.n: was int, is str",
            "  Click.user: is new and has no default; give it one",
        ]
    assert subtask.content() == before
    assert read(subtask.of(kind, V2, ttl), kind) == V2(7)
    subtask.fail()
    assert subtask.content() == before


def test_an_epoch_that_fails_takes_its_types_with_it(subtask: Evolving) -> None:
    put(subtask.of("value", V1), "value", V1(7, "/a"))
    subtask.next_epoch()
    before = subtask.content()
    put(subtask.of("value", V2), "value", V2(8, "bob"))
    subtask.state.flush()
    subtask.fail()
    assert subtask.content() == before
    assert read(subtask.of("value", V1), "value") == V1(7, "/a")


def test_every_type_a_state_has_had_must_be_readable(subtask: Evolving) -> None:
    put(subtask.of("value", int), "value", 7)
    subtask.next_epoch()
    subtask.of("value", int | None)
    subtask.next_epoch()
    subtask.of("value", int | str | None)
    subtask.next_epoch()
    with pytest.raises(StateMigrationError, match=r"was int \| str \| None, is int \| None"):
        subtask.of("value", int | None)
    assert subtask.of("value", int | str | float | None).value() == 7


def test_the_keys_of_a_map_cannot_change(subtask: Evolving) -> None:
    put(subtask.of("map", int), "map", 7)
    subtask.next_epoch()
    with pytest.raises(StateMigrationError, match="keys: are of another type; the keys of a map"):
        subtask.state.register(MapStateDescriptor("map", str | None, int))


def test_one_run_has_one_type_of_a_state(subtask: Evolving) -> None:
    scope = subtask.state.namespaced()
    subtask.of("value", V1)
    with pytest.raises(StateDescriptorError, match="registered with another type before"):
        subtask.state.register(ValueStateDescriptor("value", V2), scope)
    subtask.state.register(ValueStateDescriptor("value", V1), scope)


def test_columns_evolve_by_the_names_of_their_fields(subtask: Evolving) -> None:
    put(subtask.of("value", "n int, url string"), "value", (7, "/a"))
    subtask.next_epoch()
    state = subtask.of("value", "url string, at date, n bigint")
    assert state.value() == ("/a", None, 7)
    assert state.value().url == "/a"
    subtask.next_epoch()
    with pytest.raises(StateMigrationError, match=r"struct\.n: was int32 | None, is string | None"):
        subtask.of("value", "n string")


def test_elements_with_their_times_evolve_too(subtask: Evolving) -> None:
    subtask.of("list", timestamped(codec_for(First))).add((First(1, "/a"), 5))
    subtask.next_epoch()
    state = subtask.of("list", timestamped(codec_for(Second)))
    assert state.get() == [(Second("nobody", 1), 5)]


def test_what_is_pickled_stays_pickled(subtask: Evolving) -> None:
    put(subtask.of("value", None), "value", {"a": First})
    put(subtask.of("list", int), "list", 1)
    subtask.next_epoch()
    assert subtask.of("value", None).value() == {"a": First}
    for kind, spec in (("value", int), ("list", None)):
        subtask.next_epoch()
        with pytest.raises(StateMigrationError, match="pickled state cannot evolve"):
            subtask.of(kind, spec)


def test_what_the_store_knows_tells_the_declared_type_and_the_others(subtask: Evolving) -> None:
    subtask.of("value", V1)
    subtask.next_epoch()
    (before,) = subtask.state.state_descriptions()
    assert before.keys() == {"name", "kind", "schema"}
    subtask.of("value", V2, TTL)
    subtask.next_epoch()
    (described,) = subtask.state.state_descriptions()
    assert described["schema"] == [codec_for(V2).schema]
    assert list(described["others"].values()) == [before["schema"]]
    assert described["ttl"] is True


# With a time to live that comes or goes


@EVERY_KIND
@pytest.mark.parametrize("ttls", [(None, TTL), (TTL, None)], ids=["to times", "to none"])
def test_a_type_and_a_time_to_live_may_change_together(
    subtask: Evolving, kind: str, ttls: tuple[StateTtlConfig | None, StateTtlConfig | None]
) -> None:
    first, second = ttls
    put(subtask.of(kind, V1, first), kind, V1(1, "/a"))
    subtask.next_epoch()
    state = subtask.of(kind, V2, first)
    subtask.current.key = "b"
    put(state, kind, V2(2, "bob"))
    subtask.next_epoch()
    state = subtask.of(kind, V3, second)
    assert read(state, kind) == V3(1)
    subtask.current.key = "b"
    assert read(state, kind) == V3(2, "bob")
    subtask.clock.advance(100)
    assert (read(state, kind) is None) == (second is not None)


@EVERY_KIND
def test_two_forms_of_two_types_are_brought_together(subtask: Evolving, kind: str) -> None:
    put(subtask.of(kind, V1), kind, V1(1, "/a"))
    subtask.next_epoch()
    plain = subtask.content()
    subtask.fail()
    other = Evolving(subtask.backend, subtask.directory.with_name("other"))
    state = other.of(kind, V2, TTL)
    other.current.key = "b"
    put(state, kind, V2(2, "bob"))
    other.next_epoch()
    state_id = next(v for k, v in plain.items() if k.startswith(b"\x00\x00state"))
    moved = {
        (b"\x00\x09" + key[2:] if key[:2] == b"\x00\x01" else key): value
        for key, value in plain.items()
        if key != b"\x00\x00operator"
    }
    name = b"\x00\x00state" + kind.encode()
    moved[name] = state_id.replace(b'"id":1', b'"id":9')
    other.store.write(list(moved.items()))
    other.next_epoch()
    state = other.of(kind, V3, TTL)
    assert read(state, kind) == V3(1)
    other.current.key = "b"
    assert read(state, kind) == V3(2, "bob")
    other.state.abort()


# Bytes that may begin with anything


class Raw:
    """Any bytes; from the second version on, reversed."""

    def __init__(self, version: int) -> None:
        self.version = version

    def serialize(self, value: bytes, /) -> bytes:
        return value if self.version == 1 else value[::-1]

    def deserialize(self, data: bytes, /) -> bytes:
        return data if self.version == 1 else data[::-1]

    def snapshot(self) -> dict[str, Any]:
        return {"version": self.version}

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        return StateCompatibility.after_migration(Raw(stored["version"]).deserialize)


ODD = [b"", b"\xc1", MARK, MARK + b"abcdef", MARK * 5]


@EVERY_KIND
@pytest.mark.parametrize(
    "ttls",
    [(None, None), (TTL, TTL), (None, TTL), (TTL, None)],
    ids=["plain", "ttl", "to times", "to none"],
)
def test_bytes_of_a_serializer_that_look_like_a_mark_are_kept(
    subtask: Evolving, kind: str, ttls: tuple[StateTtlConfig | None, StateTtlConfig | None]
) -> None:
    state = subtask.of(kind, Raw(1), ttls[0])
    for number, value in enumerate(ODD):
        subtask.current.key = f"key-{number}"
        put(state, kind, value)
    subtask.next_epoch()
    for version in (2, 1, 2):
        state = subtask.of(kind, Raw(version), ttls[1])
        for number, value in enumerate(ODD):
            subtask.current.key = f"key-{number}"
            assert read(state, kind) == value
            put(state, kind, value)
        subtask.next_epoch()


def test_avro_evolves_by_its_own_rules(subtask: Evolving) -> None:
    fields = [{"name": "n", "type": "int"}]
    old = {"type": "record", "name": "Click", "fields": fields}
    new = old | {"fields": [*fields, {"name": "tags", "default": [],
                                      "type": {"type": "array", "items": "string"}}]}  # fmt: skip
    put(subtask.of("value", AvroSchema(old)), "value", {"n": 7})
    subtask.next_epoch()
    state = subtask.of("value", AvroSchema(new))
    assert state.value() == {"n": 7, "tags": []}
    state.update({"n": 8, "tags": ["x"]})
    subtask.next_epoch()
    assert subtask.of("value", AvroSchema(new)).value() == {"n": 8, "tags": ["x"]}


# Rescaling


def written(backend: Any, directory: Path, specs: list[Any], **options: Any) -> Path:
    """Snapshot of a store whose types were `specs`, one after the other."""
    subtask = Evolving(backend, directory / "store")
    keys, ttl = options["keys"], options.get("ttl")
    for place, spec in enumerate(specs):
        for kind in KINDS:
            state = subtask.of(kind, spec, ttl)
            for subtask.current.key in keys[place :: len(specs)]:
                put(state, kind, options["value"](spec, subtask.current.key))
        last = place == len(specs) - 1
        subtask.next_epoch(directory / "snapshot" if last else None)
    subtask.state.abort()
    return directory / "snapshot"


def restored(backend: Any, snapshots: list[Path], directory: Path, number: int) -> Evolving:
    restore_store(
        backend,
        snapshots,
        directory,
        version="restored",
        key_groups=key_groups(number, 3, 128),
        whole=False,
        operator_state=None,
    )
    return Evolving(backend, directory, "restored")


def keys_of(subtask: int, parallelism: int) -> list[str]:
    keys = [f"key-{number}" for number in range(30)]
    return [k for k in keys if subtask_of(key_group_of(k, 128), parallelism, 128) == subtask]


def click_of(spec: Any, key: str) -> Any:
    number = int(key[4:])
    return spec(**{"n": number} | ({"url": "/"} if spec in (V1, First) else {"user": key}))


@BACKENDS
@pytest.mark.parametrize("ttl", [None, TTL], ids=["plain", "ttl"])
@pytest.mark.parametrize(
    ("specs", "others"),
    [
        ([First], [First, Second]),
        ([First, Second], [First]),
        ([Second], [First, Second]),
        ([First], [Second]),
        ([V1], [V2, Second]),
    ],
    ids=["late", "early", "other first", "no common", "three"],
)
def test_stores_of_which_some_know_other_types_are_rescaled(
    backend: Any, ttl: StateTtlConfig | None, specs: list[Any], others: list[Any], tmp_path: Path
) -> None:
    snapshots = [
        written(backend, tmp_path / str(i), mine, keys=keys_of(i, 2), ttl=ttl, value=click_of)
        for i, mine in enumerate((specs, others))
    ]
    seen = 0
    for number in range(3):
        subtask = restored(backend, snapshots, tmp_path / f"restored-{number}", number)
        states = {kind: subtask.of(kind, Second, ttl) for kind in KINDS}
        for subtask.current.key in keys_of(number, 3):
            for kind, state in states.items():
                found = read(state, kind)
                assert found.n == int(subtask.current.key[4:])
                assert found.user in ("nobody", subtask.current.key)
            seen += 1
        subtask.state.abort()
    assert seen == 30


@BACKENDS
@pytest.mark.parametrize(
    "versions", [([1], [1, 2]), ([1, 2], [1]), ([2], [1, 2]), ([1], [2])], ids=str
)
def test_odd_bytes_are_rescaled_as_they_are(
    backend: Any, versions: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    def odd(spec: Any, key: str) -> bytes:
        return ODD[int(key[4:]) % len(ODD)]

    snapshots = [
        written(backend, tmp_path / str(i), list(map(Raw, mine)), keys=keys_of(i, 2), value=odd)
        for i, mine in enumerate(versions)
    ]
    for number in range(3):
        subtask = restored(backend, snapshots, tmp_path / f"restored-{number}", number)
        states = {kind: subtask.of(kind, Raw(3)) for kind in KINDS}
        for subtask.current.key in keys_of(number, 3):
            for kind, state in states.items():
                assert read(state, kind) == odd(None, subtask.current.key)
        subtask.state.abort()


# State of a subtask


@pytest.mark.parametrize("method", ["get_list_state", "get_union_list_state"])
def test_a_list_of_a_subtask_is_converted_when_it_is_registered(
    subtask: Evolving, method: str
) -> None:
    subtask.operator.get_list_state(ListStateDescriptor("kept", int)).add(1)
    numbers = getattr(subtask.operator, method)(ListStateDescriptor("numbers", First))
    numbers.add_all([First(1, "/a"), First(2, "/b")])
    subtask.next_epoch()
    before = dict(subtask.store.scan(SUBTASK_PREFIX))
    with pytest.raises(StateMigrationError, match="operator state 'numbers' was written"):
        getattr(subtask.operator, method)(ListStateDescriptor("numbers", int))
    subtask.next_epoch()
    assert dict(subtask.store.scan(SUBTASK_PREFIX)) == before
    for extra in range(3):
        numbers = getattr(subtask.operator, method)(ListStateDescriptor("numbers", Second))
        expected = [Second("nobody", 1), Second("nobody", 2), *[Second("x", 3)] * extra]
        assert numbers.get() == expected
        numbers.add(Second("x", 3))
        subtask.next_epoch()
    exported = subtask.operator.export()
    assert exported is not None
    assert [state.name for state in exported.states] == ["kept", "numbers"]
    assert exported.states[1].schema == [codec_for(Second).schema]


class OldKey(NamedTuple):
    region: str
    shop: int


class NewKey(NamedTuple):
    shop: int
    region: str = "eu"


class ShortKey(NamedTuple):
    region: str


def test_keys_and_values_of_broadcast_state_are_converted(subtask: Evolving) -> None:
    old = MapStateDescriptor("rules", OldKey, First)
    new = MapStateDescriptor("rules", NewKey, Second)
    rules = subtask.operator.get_broadcast_state(old)
    rules.put_all({OldKey("eu", 1): First(1, "/a"), OldKey("us", 2): None})
    subtask.next_epoch()
    expected = {NewKey(1, "eu"): Second("nobody", 1), NewKey(2, "us"): None}
    rules = subtask.operator.get_broadcast_state(new)
    assert dict(rules.items()) == expected
    rules.remove(NewKey(2, "us"))
    rules.put(NewKey(3), Second("x", 3))
    subtask.next_epoch()
    expected = {NewKey(1, "eu"): Second("nobody", 1), NewKey(3): Second("x", 3)}
    assert dict(subtask.operator.get_broadcast_state(new).items()) == expected


def test_broadcast_keys_that_would_become_one_are_refused(subtask: Evolving) -> None:
    rules = subtask.operator.get_broadcast_state(MapStateDescriptor("rules", OldKey, int))
    rules.put_all({OldKey("eu", 1): 1, OldKey("eu", 2): 2})
    subtask.next_epoch()
    with pytest.raises(StateMigrationError, match="keys, two of them are equal once"):
        subtask.operator.get_broadcast_state(MapStateDescriptor("rules", ShortKey, int))


def test_copies_of_broadcast_state_may_be_of_different_types(
    subtask: Evolving, tmp_path: Path
) -> None:
    old, new = (MapStateDescriptor("rules", str, spec) for spec in (V1, V2))
    subtask.operator.get_broadcast_state(old).put("a", V1(1, "/a"))
    subtask.next_epoch()
    behind = subtask.operator.export()
    subtask.operator.get_broadcast_state(new).put("b", V2(2, "bob"))
    ahead = subtask.operator.export()
    found = redistribute([behind, ahead], 3, 128)
    schemas = [share.states[0].schema for share in found]
    assert schemas[0] == schemas[2] != schemas[1]


def test_lists_of_different_types_are_not_joined(subtask: Evolving) -> None:
    exported = []
    for spec in (int, int | None):
        subtask.operator.get_list_state(ListStateDescriptor("numbers", spec)).add(1)
        exported.append(subtask.operator.export())
        subtask.next_epoch()
    with pytest.raises(StateError, match="all subtasks of an operator must register a state alike"):
        redistribute(exported, 3, 128)
