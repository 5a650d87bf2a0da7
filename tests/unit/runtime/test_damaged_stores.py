"""A damaged local store is named as the cause, and not the code of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import CorruptStoreError, StateValueError, StoreError, StoreVersionError
from holdfast.serde.key_reader import KeyDecoder
from holdfast.serde.key_shapes import KeyShape
from holdfast.state.list import unpack_chunk
from holdfast.testing import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASH_MAP, ROCKSDB = HashMapStateBackend(), EmbeddedRocksDBStateBackend()
BACKENDS = pytest.mark.parametrize("backend", [HASH_MAP, ROCKSDB], ids=lambda b: b.name)
CONTINUES = "With checkpoints, the job continues from the newest one, in a new directory"
KEYS = [f"key-{n}" for n in range(2000)]


class Remembers(KeyedProcessFunction):
    """Keeps a text and a list of every key."""

    def open(self, ctx: Any) -> None:
        self.text = ctx.get_state(ValueStateDescriptor("text", str))
        self.all = ctx.get_list_state(ListStateDescriptor("all", str))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.text.value() is None:
            self.text.update("text-of-" + value)
        self.all.get()
        self.all.add("element-" + value)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the stores of the test's harnesses."""
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    return tmp_path


@pytest.fixture
def harness(backend: Any, directory: Path) -> Iterator[OperatorHarness]:
    with OperatorHarness(Remembers(), key=lambda e: e, backend=backend) as harness:
        harness.push(*KEYS)
        yield harness


def overwritten(directory: Path, old: bytes, new: bytes) -> None:
    """Replace bytes in all files of the stores."""
    assert len(old) == len(new)
    found = 0
    for path in directory.rglob("*"):
        if path.is_file() and old in (data := path.read_bytes()):
            path.write_bytes(data.replace(old, new))
            found += 1
    assert found


def flipped(path: Path) -> None:
    """Flip bytes in the middle of a file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    path.write_bytes(data)


def start_and_push(harness: OperatorHarness) -> None:
    harness._start_epoch()
    harness.push(*KEYS)


def is_explained(error: pytest.ExceptionInfo[StoreError], directory: Path) -> bool:
    text = str(error.value)
    assert text.startswith("operator 'Remembers' (uid 'harness'), subtask 1/1: ")
    assert str(directory) in text
    assert "damaged" in text
    assert CONTINUES in text
    assert "open()" not in text
    assert "row:" not in text
    return True


@pytest.mark.parametrize("backend", [HASH_MAP], ids=["hashmap"])
@pytest.mark.parametrize("damage", ["garbage", "cut off"])
def test_a_damaged_file_of_the_hash_map_backend_is_named(
    harness: OperatorHarness, directory: Path, damage: str
) -> None:
    harness._finish_epoch()
    [path] = directory.rglob("*.mdb")
    size = path.stat().st_size
    path.write_bytes(b"not a database" * 9000 if damage == "garbage" else path.read_bytes()[:99999])
    assert path.stat().st_size < size
    with pytest.raises(CorruptStoreError) as caught:
        harness._start_epoch()
    assert is_explained(caught, directory)


@pytest.mark.parametrize("backend", [ROCKSDB], ids=["rocksdb"])
@pytest.mark.parametrize("damage", ["MANIFEST-*", "*.sst"])
def test_a_damaged_file_of_rocksdb_is_named(
    harness: OperatorHarness, directory: Path, damage: str
) -> None:
    harness._finish_epoch()
    for path in directory.rglob(damage):
        flipped(path)
    with pytest.raises(CorruptStoreError) as caught:
        start_and_push(harness)
    assert is_explained(caught, directory)


@BACKENDS
def test_a_store_that_is_missing_is_not_blamed_on_the_function(
    harness: OperatorHarness, directory: Path
) -> None:
    harness._finish_epoch()
    harness._version = "9-9"
    with pytest.raises(StoreVersionError) as caught:
        harness._start_epoch()
    assert str(directory) in str(caught.value)
    assert "open()" not in str(caught.value)
    harness._version = "1-1"


@pytest.mark.parametrize("backend", [HASH_MAP], ids=["hashmap"])
@pytest.mark.parametrize(
    ("old", "new"),
    [(b'{"format":1', b"{'format':1"), (b'"kind":"', b'"kind":\xff')],
    ids=["operator", "catalog"],
)
def test_damaged_metadata_is_named(
    harness: OperatorHarness, directory: Path, old: bytes, new: bytes
) -> None:
    harness._finish_epoch()
    overwritten(directory, old, new)
    with pytest.raises(CorruptStoreError) as caught:
        harness._start_epoch()
    assert is_explained(caught, directory)


@pytest.mark.parametrize("backend", [HASH_MAP], ids=["hashmap"])
def test_a_damaged_list_is_named(harness: OperatorHarness, directory: Path) -> None:
    harness._finish_epoch()
    # The header of the list's only element.
    overwritten(directory, b"\x91\xc4\x0e\xadelement-key-7", b"\x91\xc1\x0e\xadelement-key-7")
    harness._start_epoch()
    with pytest.raises(CorruptStoreError) as caught:
        harness.push("key-7")
    assert is_explained(caught, directory)


@pytest.mark.parametrize("backend", [HASH_MAP], ids=["hashmap"])
def test_a_value_that_cannot_be_read_may_be_damaged(
    harness: OperatorHarness, directory: Path
) -> None:
    harness._finish_epoch()
    overwritten(directory, b"\xaetext-of-key-77", b"\xc1text-of-key-77")
    harness._start_epoch()
    with pytest.raises(StateValueError) as caught:
        harness.push("key-77")
    text = str(caught.value)
    assert "If they were written with another type, declare that one" in text
    assert "If not, the bytes are damaged: with checkpoints, the job continues" in text


def test_bytes_that_are_no_key_no_list_or_no_timed_value_are_damaged() -> None:
    with pytest.raises(CorruptStoreError, match="no key of type int"):
        KeyDecoder(KeyShape("int")).decode(b"short")
    with pytest.raises(CorruptStoreError, match="the bytes of a list in the store are damaged"):
        unpack_chunk(b"\xc1")


class Expires(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        text = ValueStateDescriptor("text", str)
        text.enable_time_to_live(StateTtlConfig("1 h"))
        self.text = ctx.get_state(text)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.text.update("text-of-" + value)


def test_an_entry_too_short_for_its_time_is_damaged() -> None:
    with OperatorHarness(Expires(), key=lambda e: e) as harness:
        harness.push("a")
        table = harness.function.text._table
        with pytest.raises(CorruptStoreError, match="has 3 bytes, too few for the time"):
            table._codec.decode(b"abc")
