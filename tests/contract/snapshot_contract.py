"""What every local store promises about its snapshots, and about restoring from them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.config.backends import backend_named
from holdfast.errors import StateError
from holdfast.state.operator.layout import SUBTASK_PREFIX, layout
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.restore import restore_store
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store import header as store_record
from holdfast.state.store.snapshot import is_shareable, snapshot_files
from tests.contract.store_children import child, heard, kill_after, run_child
from tests.contract.store_contract import LONG_KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore, StoreStatistics

OPERATOR_STATE = OperatorStateSnapshot(
    [NamedState("offsets", "split", [{"kind": "pickle"}], [b"1", b"2"])], [b"raw"], {3: b"three"}
)
METADATA = {"format": 1, "max_parallelism": 8, "key": "str"}


def entry(state_id: int, group: int, key: bytes) -> bytes:
    """Key of an entry as keyed state writes it."""
    return state_id.to_bytes(2, "big") + group.to_bytes(2, "big") + key


def metadata(states: dict[str, int], **operator: Any) -> dict[bytes, bytes]:
    """Entries about an operator and its value states, by the ids of these."""
    encode = msgspec.json.encode
    return {
        b"\x00\x00operator": encode(METADATA | operator),
        **{
            b"\x00\x00state" + name.encode(): encode({"id": i, "kind": "value", "schema": ["int"]})
            for name, i in states.items()
        },
    }


class SnapshotContract:
    """Tests of `StateStore.commit` with a snapshot, and of `restore_store`."""

    backend: str

    def open(self, directory: Path, expected: str | None = None) -> StateStore:
        """Open a store without waiting for others."""
        raise NotImplementedError

    def made(self, directory: Path, entries: dict[bytes, bytes], version: str = "v1") -> Path:
        """Snapshot of a new store with `entries`; the store lies beside it."""
        store = self.open(directory / "store")
        store.write(entries.items())
        store.commit(version, directory / "snapshot")
        return directory / "snapshot"

    def read(self, snapshot: Path) -> dict[bytes, bytes]:
        """Everything in a snapshot, checked to be in key order."""
        with open_snapshot(backend_named(self.backend), snapshot) as opened:
            found = list(opened.scan(b""))
        assert [key for key, _ in found] == sorted(key for key, _ in found)
        return dict(found)

    def restored(self, sources: list[Path], directory: Path, **options: Any) -> StoreStatistics:
        """Restore all key groups at version "r", unless told otherwise."""
        settings: dict[str, Any] = {
            "version": "r",
            "key_groups": range(128),
            "whole": False,
            "operator_state": None,
        }
        backend = backend_named(self.backend)
        return restore_store(backend, sources, directory, **(settings | options))

    def found(self, directory: Path, expected: str = "r") -> dict[bytes, bytes]:
        """Everything in a store."""
        store = self.open(directory, expected)
        entries = dict(store.scan(b""))
        store.abort()
        return entries

    # Snapshots

    def test_a_snapshot_holds_exactly_what_was_committed_and_its_version(self, tmp_path):
        model = {b"%05d" % i: b"v%d" % i for i in range(3000)} | dict.fromkeys(LONG_KEYS, b"long")
        store = self.open(tmp_path / "store")
        store.write([*model.items(), (b"gone", b"1")])
        store.commit("v1")
        store = self.open(tmp_path / "store", "v1")
        store.write([(b"gone", None), (b"new", b"2")])
        statistics = store.commit("v2", tmp_path / "deep" / "snapshot")
        assert statistics.bytes_on_disk > 0
        assert self.read(tmp_path / "deep" / "snapshot") == model | {b"new": b"2"}
        assert self.found(tmp_path / "store", "v2") == model | {b"new": b"2"}
        with open_snapshot(backend_named(self.backend), tmp_path / "deep" / "snapshot") as snapshot:
            assert snapshot.version == "v2"

    def test_later_epochs_never_appear_in_a_snapshot(self, tmp_path):
        version, models = None, []
        for epoch in range(12):
            store = self.open(tmp_path / "store", version)
            store.write((b"%04d" % (i * 7 % 1000), b"%d" % epoch * 9) for i in range(epoch, 400))
            store.write([(b"%04d" % epoch, None)])
            models.append(dict(store.scan(b"")))
            version = f"v{epoch}"
            store.commit(version, tmp_path / f"snapshot-{epoch}")
        assert [self.read(tmp_path / f"snapshot-{epoch}") for epoch in range(12)] == models

    def test_an_empty_store_has_a_snapshot_too(self, tmp_path):
        self.open(tmp_path / "store").commit("v1", tmp_path / "snapshot")
        assert self.read(tmp_path / "snapshot") == {}
        self.restored([tmp_path / "snapshot"], tmp_path / "new", whole=True)
        assert self.found(tmp_path / "new") == {}

    def test_a_snapshot_is_private_and_made_in_one_step(self, tmp_path):
        snapshot = self.made(tmp_path, {b"a": b"1"})
        assert snapshot.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot", "store"]

    def test_a_snapshot_is_made_of_the_files_it_lists_and_no_others(self, tmp_path):
        model = {b"%05d" % i: b"v" * 90 for i in range(2000)}
        snapshot = self.made(tmp_path, model)
        self.read(snapshot)
        (tmp_path / "copy").mkdir()
        for file in snapshot_files(snapshot):
            shutil.copyfile(snapshot / file, tmp_path / "copy" / file)
        shutil.rmtree(snapshot)
        shutil.rmtree(tmp_path / "store")
        assert self.read(tmp_path / "copy") == model

    def test_a_snapshot_where_something_is_already_fails_and_the_store_has_moved_on(self, tmp_path):
        (tmp_path / "taken").mkdir()
        (tmp_path / "file").write_text("no directory")
        store = self.open(tmp_path / "store")
        store.write([(b"a", b"1")])
        with pytest.raises(StateError, match=r"'v1', which is committed.*exists already"):
            store.commit("v1", tmp_path / "taken")
        store = self.open(tmp_path / "store", "v1")
        with pytest.raises(StateError, match="no snapshot could be made of the store at 'v2'"):
            store.commit("v2", tmp_path / "file" / "snapshot")
        assert self.found(tmp_path / "store", "v2") == {b"a": b"1"}
        assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "store", "taken"]

    def test_a_process_killed_while_it_makes_a_snapshot_leaves_a_whole_one_or_none(self, tmp_path):
        program = """
store = open_at(None)
store.write((b"%06d" % i, b"v" * 1000) for i in range(6000))
store.commit('1')
store = open_at('1')
say('now')
start = time.perf_counter()
store.commit('2', Path(sys.argv[2]).parent / 'snapshot')
say(time.perf_counter() - start)
"""
        took = float(run_child(self.backend, tmp_path / "timed" / "store", program))
        for moment in range(8):
            directory = tmp_path / str(moment)
            with child(self.backend, directory / "store", program) as process:
                assert heard(process) == "now"
                kill_after(process, took * (moment + 0.5) / 8)
            if (directory / "snapshot").exists():
                assert len(self.read(directory / "snapshot")) == 6000

    def test_a_snapshot_is_read_after_a_restart_of_the_machine(self, tmp_path, monkeypatch):
        monkeypatch.setattr(store_record, "boot_id", lambda: "an-earlier-boot")
        snapshot = self.made(tmp_path, {b"a": b"1"})
        monkeypatch.undo()
        assert self.read(snapshot) == {b"a": b"1"}
        self.restored([snapshot], tmp_path / "new", whole=True)
        assert self.found(tmp_path / "new") == {b"a": b"1"}

    def test_a_snapshot_of_a_later_format_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(store_record, "FORMAT", 2)
        snapshot = self.made(tmp_path, {b"a": b"1"})
        monkeypatch.undo()
        with pytest.raises(StateError, match="format 2"):
            self.read(snapshot)
        with pytest.raises(StateError, match="format 2"):
            self.restored([snapshot], tmp_path / "new", whole=True)
        assert not (tmp_path / "new").exists()

    def test_scans_of_a_snapshot_are_bounded_by_prefix_start_and_stop(self, tmp_path):
        keys = [b"a", b"a\x00", b"ab", b"b", b"b\xff", b"\xff", b"\xff\xff", *LONG_KEYS]
        snapshot = self.made(tmp_path, dict.fromkeys(keys, b"v"))
        bounds = [b"", b"a", b"a\x00", b"b", b"c", b"p" * 500, b"\xff", LONG_KEYS[0]]
        with open_snapshot(backend_named(self.backend), snapshot) as opened:
            for prefix in bounds:
                for start in bounds:
                    for stop in (None, *bounds):
                        expected = sorted(
                            key
                            for key in keys
                            if key.startswith(prefix)
                            and key >= start
                            and (stop is None or key < stop)
                        )
                        found = [key for key, _ in opened.scan(prefix, start, stop)]
                        assert found == expected, (prefix, start, stop)

    def test_a_snapshot_may_be_closed_within_a_scan_and_again(self, tmp_path):
        snapshot = self.made(tmp_path, {b"%04d" % i: b"v" for i in range(1000)})
        opened = open_snapshot(backend_named(self.backend), snapshot)
        half_read = opened.scan(b"00")
        next(half_read)
        opened.close()
        opened.close()

    def test_a_directory_without_a_snapshot_is_refused(self, tmp_path):
        (tmp_path / "empty").mkdir()
        for directory in (tmp_path / "missing", tmp_path / "empty"):
            for use in (
                self.read,
                snapshot_files,
                lambda source: self.restored([source], tmp_path / "new"),
                lambda source: self.restored([source], tmp_path / "new", whole=True),
            ):
                with pytest.raises(StateError, match=f"{directory}: there is no snapshot"):
                    use(directory)
        assert not (tmp_path / "new").exists()

    def test_files_are_shared_between_snapshots_only_if_they_are_the_same(self, tmp_path):
        version, seen = None, dict[str, bytes]()
        for epoch in range(20):
            store = self.open(tmp_path / "store", version)
            store.write((b"%04d" % (i * 31 % 3000), b"%d" % epoch) for i in range(200))
            version = f"v{epoch}"
            snapshot = tmp_path / f"snapshot-{epoch}"
            store.commit(version, snapshot)
            for file in filter(is_shareable, snapshot_files(snapshot)):
                data = (snapshot / file).read_bytes()
                assert seen.setdefault(file.name, data) == data
        assert (len(seen) > 0) == (self.backend == "rocksdb")

    # Restoring one snapshot whole

    def test_a_store_taken_over_whole_stands_at_its_new_version_and_goes_on(self, tmp_path):
        model = {entry(1, i % 128, b"%d" % i): b"v%d" % i for i in range(3000)}
        snapshot = self.made(tmp_path, model)
        statistics = self.restored([snapshot], tmp_path / "new" / "3", whole=True)
        assert statistics.entries == pytest.approx(len(model), abs=3)
        assert statistics.bytes_on_disk > 0
        version = "r"
        for epoch in range(10):
            store = self.open(tmp_path / "new" / "3", version)
            fresh = {entry(1, i, b"fresh%d" % epoch): b"f" * 900 for i in range(128)}
            store.write(fresh.items())
            model |= fresh
            version = f"r{epoch}"
            store.commit(version)
        assert self.found(tmp_path / "new" / "3", version) == model

    def test_a_restored_store_shares_no_change_with_its_source(self, tmp_path):
        model = {entry(1, i % 128, b"%d" % i): b"old" for i in range(2000)}
        snapshot = self.made(tmp_path, model)
        self.restored([snapshot], tmp_path / "new", whole=True)
        for directory, expected in ((tmp_path / "store", "v1"), (tmp_path / "new", "r")):
            store = self.open(directory, expected)
            store.write((key, None if i % 2 else b"changed") for i, key in enumerate(model))
            store.commit("next")
        assert self.read(snapshot) == model
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700

    def test_only_one_snapshot_can_be_taken_over_whole(self, tmp_path):
        snapshot = self.made(tmp_path, {b"a": b"1"})
        for sources in ([], [snapshot, snapshot]):
            with pytest.raises(StateError, match=f"of one snapshot, not of {len(sources)}"):
                self.restored(sources, tmp_path / "new", whole=True)

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_store_is_never_restored_over_another(self, tmp_path, whole):
        snapshot = self.made(tmp_path, {b"a": b"1"})
        with pytest.raises(StateError, match="exists already"):
            self.restored([snapshot], tmp_path / "store", whole=whole)
        assert self.found(tmp_path / "store", "v1") == {b"a": b"1"}

    @pytest.mark.parametrize("whole", [True, False])
    def test_operator_state_of_the_source_is_replaced(self, tmp_path, whole):
        kept = metadata({"count": 1}) | {entry(1, 5, b"k"): b"1"}
        own = {SUBTASK_PREFIX + b"\x01old": b"{}", SUBTASK_PREFIX + b"\x02\x03old\x00": b"gone"}
        snapshot = self.made(tmp_path, kept | own)
        self.restored([snapshot], tmp_path / "new", whole=whole, operator_state=OPERATOR_STATE)
        assert self.found(tmp_path / "new") == kept | dict(layout(OPERATOR_STATE))
        self.restored([snapshot], tmp_path / "none", whole=whole, operator_state=None)
        assert self.found(tmp_path / "none") == kept

    # Gathering from several

    def test_nothing_can_be_gathered_from_no_snapshot(self, tmp_path):
        self.restored([], tmp_path / "new")
        assert self.found(tmp_path / "new") == {}
        self.restored([], tmp_path / "own", operator_state=OPERATOR_STATE)
        assert self.found(tmp_path / "own") == dict(layout(OPERATOR_STATE))

    def test_only_entries_of_the_key_groups_are_gathered(self, tmp_path):
        model = {entry(s, g, k): b"v" for s in (1, 2) for g in range(8) for k in (b"a", b"b" * 600)}
        snapshot = self.made(tmp_path, metadata({"one": 1, "two": 2}) | model)
        for groups in (range(8), range(3, 6), range(7, 8), range(4, 4)):
            directory = tmp_path / f"{groups.start}-{groups.stop}"
            self.restored([snapshot], directory, key_groups=groups)
            expected = {k: v for k, v in model.items() if int.from_bytes(k[2:4], "big") in groups}
            assert self.found(directory) == metadata({"one": 1, "two": 2}) | expected

    def test_states_are_gathered_by_name_whatever_their_ids(self, tmp_path):
        first = self.made(
            tmp_path / "0",
            metadata({"a": 1, "b": 2}) | {entry(1, 0, b"k"): b"a0", entry(2, 0, b"k"): b"b0"},
        )
        second = self.made(
            tmp_path / "1",
            metadata({"b": 1, "c": 2, "a": 3})
            | {entry(1, 4, b"k"): b"b4", entry(2, 4, b"k"): b"c4", entry(3, 4, b"k"): b"a4"},
        )
        self.restored([first, second], tmp_path / "new")
        assert self.found(tmp_path / "new") == metadata({"a": 1, "b": 2, "c": 3}) | {
            entry(1, 0, b"k"): b"a0",
            entry(1, 4, b"k"): b"a4",
            entry(2, 0, b"k"): b"b0",
            entry(2, 4, b"k"): b"b4",
            entry(3, 4, b"k"): b"c4",
        }

    def test_gathering_in_small_portions_gives_the_same(self, tmp_path):
        sources, model = [], metadata({"a": 1})
        for part in range(3):
            entries = {
                entry(1, part * 40 + i % 40, b"%d" % i): b"v" * (i % 70) for i in range(1500)
            } | {entry(1, part * 40 + i, b"%d" % i * 300): b"long" for i in range(9)}
            sources.append(self.made(tmp_path / str(part), metadata({"a": 1}) | entries))
            model |= entries
        statistics = self.restored(sources, tmp_path / "new", chunk_bytes=20_000)
        assert statistics.entries == pytest.approx(len(model), rel=0.05)
        assert self.found(tmp_path / "new") == model

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (metadata({"a": 1}, max_parallelism=16), "the max parallelism is 16"),
            (metadata({"a": 1}, key="int"), "int in this snapshot, and str elsewhere.*another uid"),
            (metadata({"a": 1}, format=2), "layout version 2"),
            (
                {b"\x00\x00statea": b'{"id":1,"kind":"list","schema":["int"]}'},
                "the kind of state 'a' is list",
            ),
            (metadata({"a": 1}) | {entry(1, 0, b"k"): b"2"}, "have the same entry"),
        ],
    )
    def test_snapshots_that_do_not_agree_are_refused(self, tmp_path, other, message):
        first = self.made(tmp_path / "0", metadata({"a": 1}) | {entry(1, 0, b"k"): b"1"})
        second = self.made(tmp_path / "1", other)
        with pytest.raises(StateError, match=message):
            self.restored([first, second], tmp_path / "new")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

    def test_key_types_are_joined(self, tmp_path):
        sources = [
            self.made(tmp_path / str(i), metadata({}, key=key))
            for i, key in enumerate([None, "tuple[?, int]", "tuple[str, ?]"])
        ]
        self.restored(sources, tmp_path / "new")
        assert self.found(tmp_path / "new") == metadata({}, key="tuple[str, int]")

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_store_that_does_not_fit_on_the_disk_is_a_clear_error_and_leaves_nothing(
        self, tmp_path, whole
    ):
        model = {entry(1, i % 8, b"%d" % i): b"%d" % i * 200 for i in range(9000)}
        self.made(tmp_path, metadata({"a": 1}) | model)
        program = f"""
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.restore import restore_store
directory = Path(sys.argv[2])
big = OperatorStateSnapshot([], [os.urandom(3_000_000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    restore_store(backend_named(sys.argv[1]), [directory / 'snapshot'], directory / 'new',
        version='r', key_groups=range(8), whole={whole}, operator_state=big)
except HoldfastError as error:
    say(f"{{type(error).__name__}}: {{error}}")
"""
        said = run_child(self.backend, tmp_path, program)
        assert said.startswith("StoreFullError: ")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot", "store"]
