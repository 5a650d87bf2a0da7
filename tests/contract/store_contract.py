"""What every local store promises, whatever it is made of.

A subclass names its backend and opens a store; all else is the same for all.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING

import pytest

from holdfast.config.backends import backend_named
from holdfast.errors import StateError, StateValueError, StoreVersionError
from holdfast.state.store import header as store_record
from holdfast.state.store.opening import open_store
from tests.contract.store_children import child, heard

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore

STEM = b"p" * 495
LONG_KEYS = [
    *(bytes([c]) * n for c in (1, 0xFF) for n in (494, 495, 496, 510, 511, 512, 513, 5000)),
    *(STEM + b"%04d" % i * 8 for i in range(40)),
    STEM,
    STEM + b"q" * 16,
    STEM + b"q" * 17,
]


class StoreContract:
    """Tests of the `StateStore` protocol."""

    backend: str

    def open(self, directory: Path, expected: str | None = None) -> StateStore:
        """Open a store without waiting for others."""
        raise NotImplementedError

    def filled(self, directory: Path, entries: dict[bytes, bytes], version: str = "v1") -> None:
        """Make a store that holds `entries`."""
        store = self.open(directory)
        store.write(entries.items())
        store.commit(version)

    def contents(self, directory: Path, expected: str) -> dict[bytes, bytes]:
        """Everything in the store, checked to be in key order."""
        store = self.open(directory, expected)
        found = list(store.scan(b""))
        store.abort()
        assert [key for key, _ in found] == sorted(key for key, _ in found)
        return dict(found)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "job" / "0" / "operator" / "3"

    # Reading and writing

    def test_a_new_store_is_empty_and_has_no_version(self, directory):
        store = self.open(directory)
        assert store.version is None
        assert store.get(b"a") is None
        assert store.get_many([b"a", b"b"]) == [None, None]
        assert list(store.scan(b"")) == []
        store.abort()

    def test_what_is_committed_is_found_again_at_its_version(self, directory):
        self.filled(directory, {b"a": b"1", b"b": b"2"}, "epoch-1")
        store = self.open(directory, "epoch-1")
        assert store.version == "epoch-1"
        assert store.get(b"a") == b"1"
        store.abort()

    def test_get_many_answers_in_the_order_of_the_keys_with_none_for_misses(self, directory):
        self.filled(directory, {b"%d" % i: b"v%d" % i for i in range(1000)})
        store = self.open(directory, "v1")
        keys = [b"%d" % (i * 7 % 2000) for i in range(2000)] + [b"3", b"3"]
        expected = [b"v" + key if int(key) < 1000 else None for key in keys]
        assert store.get_many(keys) == expected
        assert store.get_many(tuple(keys)) == expected
        assert store.get_many([]) == []
        store.abort()

    def test_the_empty_key_is_never_found_and_cannot_be_written(self, directory):
        self.filled(directory, {b"a": b"1"})
        store = self.open(directory, "v1")
        assert store.get(b"") is None
        assert store.get_many([b"a", b"", b"b"]) == [b"1", None, None]
        with pytest.raises(StateValueError, match="empty"):
            store.write([(b"b", b"2"), (b"", b"3")])
        assert store.get(b"b") is None
        store.abort()

    def test_staged_entries_are_seen_before_the_commit(self, directory):
        self.filled(directory, {b"a": b"1", b"b": b"2", b"c": b"3"})
        store = self.open(directory, "v1")
        store.write([(b"b", b"two"), (b"c", None), (b"d", b"4")])
        assert [store.get(key) for key in (b"a", b"b", b"c", b"d")] == [b"1", b"two", None, b"4"]
        assert store.get_many([b"d", b"c", b"b", b"a"]) == [b"4", None, b"two", b"1"]
        assert list(store.scan(b"")) == [(b"a", b"1"), (b"b", b"two"), (b"d", b"4")]
        store.abort()

    def test_later_items_win_within_a_write_and_across_writes(self, directory):
        store = self.open(directory)
        store.write([(b"a", b"1"), (b"a", None), (b"a", b"2")])
        assert store.get(b"a") == b"2"
        store.write([(b"a", None), (b"b", b"1")])
        store.write([(b"b", b"2")])
        store.commit("v1")
        assert self.contents(directory, "v1") == {b"b": b"2"}

    def test_deleting_what_is_not_there_changes_nothing(self, directory):
        self.filled(directory, {b"a": b"1"})
        store = self.open(directory, "v1")
        store.write([(b"x", None), (b"y" * 600, None)])
        store.commit("v2")
        assert self.contents(directory, "v2") == {b"a": b"1"}

    def test_deleted_entries_stay_deleted_and_can_come_back(self, directory):
        self.filled(directory, {b"a": b"1", b"b": b"2"})
        for version, value in (("v2", None), ("v3", b"again")):
            store = self.open(directory, "v1" if version == "v2" else "v2")
            store.write([(b"a", value)])
            store.commit(version)
        assert self.contents(directory, "v3") == {b"a": b"again", b"b": b"2"}

    def test_empty_values_differ_from_missing_ones(self, directory):
        self.filled(directory, {b"a": b""})
        store = self.open(directory, "v1")
        store.write([(b"b", b"")])
        assert store.get_many([b"a", b"b", b"c"]) == [b"", b"", None]
        assert list(store.scan(b"")) == [(b"a", b""), (b"b", b"")]
        store.abort()

    def test_big_values_come_back_whole(self, directory):
        big = bytes(range(256)) * 40_000
        self.filled(directory, {b"big": big, b"l" * 700: big[::-1], b"small": b"1"})
        assert self.contents(directory, "v1") == {
            b"big": big,
            b"l" * 700: big[::-1],
            b"small": b"1",
        }

    def test_a_value_beyond_two_gigabytes_is_refused_and_nothing_of_the_call_staged(
        self, directory
    ):
        store = self.open(directory)
        with pytest.raises(StateValueError, match="2,147,483,648 bytes"):
            store.write([(b"a", b"1"), (b"b", bytes(2**31))])
        assert list(store.scan(b"")) == []
        store.abort()

    # Scans

    def test_a_scan_finds_exactly_the_keys_with_its_prefix_in_order(self, directory):
        keys = [b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"ab", b"b", b"\xff", b"\xff\xff", b"\x00"]
        self.filled(directory, dict.fromkeys(keys[::2], b"old"))
        store = self.open(directory, "v1")
        store.write(dict.fromkeys(keys[1::2], b"new").items())
        for prefix in (b"", b"a", b"a\xff", b"\xff", b"\xff\xff", b"\x00", b"ab", b"abc", b"c"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert [key for key, _ in store.scan(prefix)] == expected
        store.abort()

    def test_a_scan_may_start_anywhere(self, directory):
        keys = [b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"ab", b"b", b"\xff", b"\xff\xff", b"\x00"]
        self.filled(directory, dict.fromkeys([*keys[::2], b"aa"], b"old"))
        store = self.open(directory, "v1")
        store.write([*dict.fromkeys(keys[1::2], b"new").items(), (b"aa", None)])
        for prefix in (b"", b"a", b"a\xff", b"\xff", b"ab", b"c"):
            for start in (b"", b"\x00", b"a", b"a\x01", b"aa", b"a\xff\xff\xff", b"b", b"\xff\xff"):
                expected = sorted(key for key in keys if key.startswith(prefix) and key >= start)
                assert [key for key, _ in store.scan(prefix, start)] == expected
        store.abort()

    def test_the_start_of_a_scan_is_sought(self, directory):
        self.filled(directory, {b"k%06d" % i: b"v" for i in range(200_000)})
        store = self.open(directory, "v1")
        store.write((b"k%06dx" % i, b"new") for i in range(100_000))
        next(store.scan(b"k"))
        assert self.seconds_to_find(store, b"k199999") < 20 * self.seconds_to_find(
            store, b"k000001"
        )
        store.abort()

    def test_the_start_of_a_scan_lies_behind_the_traces_of_deleted_entries(self, directory):
        self.filled(directory, {b"k%06d" % i: b"v" for i in range(200_000)})
        store = self.open(directory, "v1")
        store.write((b"k%06d" % i, None) for i in range(199_999))
        store.commit("v2")
        store = self.open(directory, "v2")
        assert self.seconds_to_find(store, b"k199999") < 0.005
        store.abort()

    def seconds_to_find(self, store: StateStore, start: bytes) -> float:
        """Best time of several to the first entry of a scan."""
        times = []
        for _ in range(10):
            before = perf_counter()
            assert next(store.scan(b"k", start))[0] == start
            times.append(perf_counter() - before)
        return min(times)

    def test_a_scan_may_be_left_half_way(self, directory):
        self.filled(directory, {b"%04d" % i: b"v" for i in range(1000)})
        store = self.open(directory, "v1")
        store.write([(b"0001x", b"new")])
        half_read = store.scan(b"00")
        assert [next(half_read)[0] for _ in range(3)] == [b"0000", b"0001", b"0001x"]
        store.commit("v2")
        assert len(self.contents(directory, "v2")) == 1001

    def test_scans_between_small_writes_see_every_one_of_them(self, directory):
        self.filled(directory, {b"k%05d" % i: b"old" for i in range(0, 2000, 2)})
        store = self.open(directory, "v1")
        store.write((b"k%05d" % i, b"new") for i in range(1, 2000, 4))
        for i in range(0, 2000, 50):
            store.write([(b"k%05d" % i, None), (b"k%05d" % i + b"x", b"%d" % i)])
            around = [key for key, _ in store.scan(b"k%05d" % i)]
            assert around == [b"k%05d" % i + b"x"]
        store.abort()

    # Long keys

    def test_keys_of_any_length_work(self, directory):
        model = {key: b"v" + key[-9:] for key in LONG_KEYS}
        self.filled(directory, model)
        store = self.open(directory, "v1")
        assert store.get_many(LONG_KEYS) == list(model.values())
        assert [store.get(key) for key in LONG_KEYS] == list(model.values())
        assert store.get_many([STEM + b"0001" * 8 + b"x", STEM[:-1]]) == [None, None]
        for prefix in (b"", b"p", STEM[:-1], STEM, STEM + b"0", STEM + b"q" * 16, b"\xff" * 511):
            expected = [(key, model[key]) for key in sorted(model) if key.startswith(prefix)]
            assert list(store.scan(prefix)) == expected
            for start in (*LONG_KEYS, STEM + b"0007", STEM + b"q" * 20, STEM + b"q" * 15):
                behind = [item for item in expected if item[0] >= start]
                assert list(store.scan(prefix, start)) == behind
        store.abort()

    def test_long_keys_are_overwritten_and_deleted_like_others(self, directory):
        model = {key: b"1" for key in LONG_KEYS}
        self.filled(directory, model)
        store = self.open(directory, "v1")
        store.write((key, b"2" if i % 3 else None) for i, key in enumerate(LONG_KEYS))
        expected = {key: b"2" for i, key in enumerate(LONG_KEYS) if i % 3}
        assert dict(store.scan(b"")) == expected
        store.commit("v2")
        assert self.contents(directory, "v2") == expected

    # Versions

    def test_an_abort_leaves_the_store_as_it_was_and_may_be_repeated(self, directory):
        self.filled(directory, {b"a": b"1"})
        store = self.open(directory, "v1")
        store.write([(b"a", b"2"), (b"b", b"3")])
        store.abort()
        store.abort()
        assert self.contents(directory, "v1") == {b"a": b"1"}

    def test_a_new_store_that_was_aborted_is_still_new(self, directory):
        store = self.open(directory)
        store.write([(b"a", b"1")])
        store.abort()
        self.filled(directory, {b"b": b"2"})
        assert self.contents(directory, "v1") == {b"b": b"2"}

    def test_an_empty_commit_moves_the_version(self, directory):
        self.filled(directory, {b"a": b"1"})
        self.open(directory, "v1").commit("v2")
        assert self.contents(directory, "v2") == {b"a": b"1"}

    def test_a_store_that_is_left_stays_at_its_version(self, directory):
        self.filled(directory, {b"a": b"1", b"b": b"2"})
        store = self.open(directory, "v1")
        assert store.get(b"a") == b"1"
        assert not store.is_changed
        statistics = store.leave()
        assert statistics.entries == 2
        assert statistics.bytes_on_disk > 0
        assert self.contents(directory, "v1") == {b"a": b"1", b"b": b"2"}

    def test_a_store_is_changed_by_what_is_staged(self, directory):
        store = self.open(directory)
        store.write([])
        assert not store.is_changed
        store.write([(b"a", b"1")])
        assert store.is_changed
        store.abort()

    def test_a_store_at_another_version_is_refused_with_both_named(self, directory):
        self.filled(directory, {b"a": b"1"}, "epoch-7-attempt-3")
        with pytest.raises(StoreVersionError) as caught:
            self.open(directory, "epoch-6-attempt-9")
        for part in (str(directory), "epoch-7-attempt-3", "epoch-6-attempt-9"):
            assert part in str(caught.value)
        assert self.contents(directory, "epoch-7-attempt-3") == {b"a": b"1"}

    def test_an_existing_store_is_never_taken_for_a_new_one(self, directory):
        self.filled(directory, {b"a": b"1"})
        with pytest.raises(StoreVersionError, match="expected no store here"):
            self.open(directory)
        assert self.contents(directory, "v1") == {b"a": b"1"}

    def test_a_missing_store_is_refused_and_nothing_is_created(self, directory):
        with pytest.raises(StoreVersionError, match="but there is none"):
            self.open(directory, "v1")
        assert not directory.exists()
        self.open(directory).abort()
        with pytest.raises(StoreVersionError, match="but there is none"):
            self.open(directory, "v1")

    def test_the_store_of_another_backend_is_refused(self, directory):
        other = ({"hashmap", "rocksdb"} - {self.backend}).pop()
        store = open_store(backend_named(other), directory, None)
        store.write([(b"a", b"1")])
        store.commit("v1")
        for expected in (None, "v1"):
            with pytest.raises(StoreVersionError, match=str(directory)):
                self.open(directory, expected)
        open_store(backend_named(other), directory, "v1").abort()

    def test_a_later_format_is_refused_with_its_number(self, directory, monkeypatch):
        monkeypatch.setattr(store_record, "FORMAT", 2)
        self.filled(directory, {b"a": b"1"})
        monkeypatch.undo()
        with pytest.raises(StateError, match=r"format 2.* format 1"):
            self.open(directory, "v1")

    def test_a_store_from_before_a_restart_of_the_machine_is_refused(self, directory, monkeypatch):
        monkeypatch.setattr(store_record, "boot_id", lambda: "an-earlier-boot")
        self.filled(directory, {b"a": b"1"})
        monkeypatch.undo()
        with pytest.raises(StoreVersionError, match="restarted"):
            self.open(directory, "v1")

    def test_a_closed_store_cannot_be_used(self, directory):
        store = self.open(directory)
        store.commit("v1")
        for use in (
            lambda: store.get(b"a"),
            lambda: store.get_many([b"a"]),
            lambda: store.scan(b""),
            lambda: store.write([(b"a", b"1")]),
            lambda: store.commit("v2"),
        ):
            with pytest.raises(StateError, match="after its commit or abort"):
                use()
        store.abort()

    def test_the_store_is_readable_by_its_user_only(self, directory):
        self.filled(directory, {b"a": b"1"})
        for private in (directory, directory.parent, directory.parent.parent):
            assert private.stat().st_mode & 0o777 == 0o700

    # One writer

    def test_a_second_writer_in_the_same_process_is_refused(self, directory):
        first = self.open(directory)
        first.write([(b"a", b"1")])
        with pytest.raises(StateError, match="another attempt"):
            self.open(directory)
        first.commit("v1")
        assert self.contents(directory, "v1") == {b"a": b"1"}

    def test_a_second_writer_in_another_process_is_refused_until_the_first_is_gone(self, directory):
        self.filled(directory, {b"a": b"1"})
        program = "store = open_at('v1'); store.write([(b'a', b'2')]); say('open'); input()"
        with child(self.backend, directory, program) as process:
            assert heard(process) == "open"
            with pytest.raises(StateError, match="another attempt"):
                self.open(directory, "v1")
        assert self.contents(directory, "v1") == {b"a": b"1"}

    def test_a_second_writer_waits_for_the_first_to_end(self, directory):
        first = self.open(directory)
        opened: list[StateStore] = []
        backend = backend_named(self.backend)
        waiting = threading.Thread(
            target=lambda: opened.append(open_store(backend, directory, "v1"))
        )
        waiting.start()
        first.commit("v1")
        waiting.join()
        assert [store.version for store in opened] == ["v1"]
        opened[0].abort()

    # Size and time

    def test_a_store_grows_far_beyond_its_first_size(self, directory):
        model: dict[bytes, bytes] = {}
        version: str | None = None
        for epoch in range(4):
            store = self.open(directory, version)
            fresh = {b"%d-%d" % (epoch, i): bytes([epoch]) * 2000 for i in range(8000)}
            store.write(fresh.items())
            model |= fresh
            version = f"v{epoch}"
            statistics = store.commit(version)
        assert statistics.bytes_on_disk > 60_000_000
        assert statistics.entries == pytest.approx(len(model), rel=0.01)
        assert self.contents(directory, "v3") == model

    def test_a_store_is_opened_as_fast_when_it_is_large(self, directory):
        small, large = directory / "small", directory / "large"
        self.filled(small, {b"a": b"1"})
        self.filled(large, {b"%07d" % i: b"v" * 50 for i in range(300_000)})
        assert self.seconds_to_open(large) < 10 * self.seconds_to_open(small)

    def seconds_to_open(self, directory: Path) -> float:
        """Best of several."""
        times = []
        for _ in range(10):
            start = perf_counter()
            store = self.open(directory, "v1")
            times.append(perf_counter() - start)
            store.abort()
        return min(times)

    def test_hundreds_of_epochs_leave_a_small_store(self, directory):
        self.run_epochs(directory, 200)

    @pytest.mark.slow
    def test_thousands_of_epochs_stay_fast(self, directory):
        times = self.run_epochs(directory, 3000)
        assert min(times[-300:]) < 5 * min(times[:300])

    def run_epochs(self, directory: Path, epochs: int) -> list[float]:
        """Epochs that change ever other entries of a few; the time of each."""
        times, version = [], None
        for epoch in range(epochs):
            start = perf_counter()
            store = self.open(directory, version)
            value = b"%d" % epoch * 10
            store.write((b"%04d" % ((epoch * 37 + i) % 2000), value) for i in range(100))
            store.write([(b"%04d" % ((epoch * 37 + 1000) % 2000), None)])
            version = f"v{epoch}"
            statistics = store.commit(version)
            times.append(perf_counter() - start)
        assert statistics.bytes_on_disk < 4_000_000
        assert sum(1 for path in directory.rglob("*") if path.is_file()) < 30
        store = self.open(directory, version)
        found = dict(store.scan(b""))
        store.abort()
        assert found[b"%04d" % (((epochs - 1) * 37) % 2000)] == b"%d" % (epochs - 1) * 10
        return times
