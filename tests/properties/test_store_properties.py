"""Any sequence of operations on a store equals the same on a dictionary."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.backends import backend_named
from holdfast.state.store.header import checked_version, encode_record
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import boot_id
from holdfast.state.store.write_buffer import WriteBuffer, after_prefix
from tests.support.in_memory import IN_MEMORY
from tests.support.properties import searched

if TYPE_CHECKING:
    from holdfast.state.store.protocol import StateStore

# Few different bytes, so that keys meet and prefix each other; some beyond LMDB's 511 bytes.
SHORT = st.lists(st.sampled_from([0, 1, 97, 254, 255]), max_size=4).map(bytes)
LONG = st.builds(
    lambda stem, extra: stem + extra,
    st.sampled_from([b"a" * 493, b"a" * 495, b"a" * 509, b"\xff" * 511, b"b" * 900]),
    SHORT,
)
PREFIXES = SHORT | LONG
KEYS = PREFIXES.filter(bool)
VALUES = st.none() | st.binary(max_size=8) | st.just(b"v" * 5000)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.lists(st.tuples(KEYS, VALUES), max_size=12)),
    st.tuples(st.just("get_many"), st.lists(KEYS, max_size=8)),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("scan"), st.tuples(PREFIXES, PREFIXES)),
    st.tuples(st.sampled_from(["commit", "abort"]), st.none()),
)


class Twin:
    """A store and its model, which is a dictionary and the last committed one."""

    def __init__(self, backend: str, directory: Path) -> None:
        self.backend = backend_named(backend)
        self.directory = directory
        self.committed: dict[bytes, bytes] = {}
        self.model: dict[bytes, bytes] = {}
        self.version: str | None = None
        self.commits = 0
        self.store: StateStore = self.opened()

    def opened(self) -> StateStore:
        return open_store(self.backend, self.directory, self.version)

    def apply(self, operation: str, argument: Any) -> None:
        getattr(self, operation)(argument)

    def write(self, items: list[tuple[bytes, bytes | None]]) -> None:
        self.store.write(iter(items))
        for key, value in items:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    def get_many(self, keys: list[bytes]) -> None:
        assert self.store.get_many(keys) == [self.model.get(key) for key in keys]

    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.model.get(key)

    def scan(self, prefix_and_start: tuple[bytes, bytes]) -> None:
        prefix, start = prefix_and_start
        expected = sorted(item for item in self.model.items() if item[0].startswith(prefix))
        assert list(self.store.scan(prefix)) == expected
        behind = [item for item in expected if item[0] >= start]
        assert list(self.store.scan(prefix, start)) == behind

    def commit(self, _: None) -> None:
        self.commits += 1
        self.version = f"v{self.commits}"
        self.store.commit(self.version)
        self.committed = dict(self.model)
        self.store = self.opened()

    def abort(self, _: None) -> None:
        self.store.abort()
        self.model = dict(self.committed)
        self.store = self.opened()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@searched(30, 100)
def test_a_store_behaves_like_a_dictionary(backend: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(operations=st.lists(OPERATIONS, max_size=14))
    def check(operations: list[tuple[str, Any]]) -> None:
        with TemporaryDirectory(dir=IN_MEMORY) as directory:
            twin = Twin(backend, Path(directory) / "store")
            try:
                for operation, argument in [*operations, ("scan", (b"", b"")), ("commit", None)]:
                    twin.apply(operation, argument)
                twin.scan((b"", b""))
            finally:
                twin.store.abort()

    check()


@given(
    committed=st.dictionaries(KEYS, st.binary(max_size=2)),
    writes=st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=5), max_size=6),
    prefix=PREFIXES,
    start=PREFIXES,
    insert_up_to=st.sampled_from([0, 2, 256]),
)
def test_staged_entries_are_merged_in_order(committed, writes, prefix, start, insert_up_to) -> None:
    staged, model = WriteBuffer(insert_up_to), dict(committed)
    for items in writes:
        staged.put(items)
        model.update(items)
        under = sorted(item for item in committed.items() if item[0].startswith(prefix))
        expected = sorted(
            (key, value)
            for key, value in model.items()
            if key.startswith(prefix) and value is not None
        )
        assert list(staged.merge(prefix, iter(under))) == expected
        behind = [item for item in under if item[0] >= start]
        expected = [item for item in expected if item[0] >= start]
        assert list(staged.merge(prefix, iter(behind), start)) == expected


@given(PREFIXES, PREFIXES)
def test_the_key_after_a_prefix_divides_the_keys(prefix: bytes, key: bytes) -> None:
    end = after_prefix(prefix)
    assert key.startswith(prefix) == (prefix <= key and (end is None or key < end))


@given(st.text())
def test_a_record_keeps_any_version(version: str) -> None:
    record = encode_record(version)
    assert record.startswith(b"holdfast\x00\x00\x00\x01")
    assert boot_id().encode() in record
    assert checked_version(record, version, Path("anywhere")) == version
