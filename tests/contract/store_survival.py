"""What a store survives: processes killed at any moment, and disks that are full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import StoreVersionError
from tests.contract.store_children import child, heard, kill_after, run_child

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore

ENTRIES = 12_000

CHANGE_EVERYTHING = f"""
def change(expected, number):
    store = open_at(expected)
    value = b"%d" % number * 20
    store.write((b"%06d" % i, value) for i in range({ENTRIES}))
    return store
"""

COMMIT_TIMED = """
store = change(None, 1)
say('committing')
start = time.perf_counter()
store.commit('1')
say(time.perf_counter() - start)
"""


class StoreSurvival:
    """Tests of the `StateStore` protocol under the hardest circumstances."""

    backend: str

    def open(self, directory: Path, expected: str | None = None) -> StateStore:
        """Open a store without waiting for others."""
        raise NotImplementedError

    def version_found(self, directory: Path, *candidates: str) -> str:
        """The one version that the store is at; everything in it must be of that version."""
        for version in candidates:
            try:
                store = self.open(directory, version)
            except StoreVersionError:
                continue
            found = dict(store.scan(b""))
            store.abort()
            value = version.encode() * 20
            assert found == {b"%06d" % i: value for i in range(ENTRIES)}
            return version
        raise AssertionError(f"the store is at none of {candidates}")

    def test_a_process_killed_before_its_commit_leaves_the_old_version(self, tmp_path):
        run_child(self.backend, tmp_path / "s", CHANGE_EVERYTHING + COMMIT_TIMED)
        program = CHANGE_EVERYTHING + "store = change('1', 2); say('written'); input()"
        with child(self.backend, tmp_path / "s", program) as process:
            assert heard(process) == "written"
        assert self.version_found(tmp_path / "s", "1", "2") == "1"

    def test_a_process_killed_while_it_creates_a_store_leaves_a_new_one(self, tmp_path):
        program = CHANGE_EVERYTHING + "store = change(None, 1); say('written'); input()"
        with child(self.backend, tmp_path / "s", program) as process:
            assert heard(process) == "written"
        run_child(self.backend, tmp_path / "s", CHANGE_EVERYTHING + COMMIT_TIMED)
        assert self.version_found(tmp_path / "s", "1") == "1"

    def test_a_process_killed_after_its_commit_leaves_the_new_version(self, tmp_path):
        run_child(self.backend, tmp_path / "s", CHANGE_EVERYTHING + COMMIT_TIMED)
        program = CHANGE_EVERYTHING + "change('1', 2).commit('2'); say('committed'); input()"
        with child(self.backend, tmp_path / "s", program) as process:
            assert heard(process) == "committed"
        assert self.version_found(tmp_path / "s", "1", "2") == "2"

    def test_a_process_killed_at_any_moment_of_a_commit_leaves_one_of_the_two(self, tmp_path):
        directory = tmp_path / "s"
        took = float(run_child(self.backend, directory, CHANGE_EVERYTHING + COMMIT_TIMED))
        version, moments = 1, 12
        for moment in range(moments):
            after = version + 1
            program = f"store = change('{version}', {after}); say('now'); store.commit('{after}')"
            with child(self.backend, directory, CHANGE_EVERYTHING + program) as process:
                assert heard(process) == "now"
                kill_after(process, took * (moment + 0.5) / moments)
            version = int(self.version_found(directory, str(version), str(after)))

    def test_a_process_killed_at_any_moment_of_an_opening_leaves_the_store_usable(self, tmp_path):
        directory = tmp_path / "s"
        run_child(self.backend, directory, CHANGE_EVERYTHING + COMMIT_TIMED)
        for moment in range(6):
            program = "say('now')\nwhile True: open_at('1').abort()"
            with child(self.backend, directory, program) as process:
                assert heard(process) == "now"
                kill_after(process, 0.002 * (moment + 1))
        assert self.version_found(directory, "1") == "1"

    def test_a_full_disk_is_a_clear_error_and_leaves_the_old_version(self, tmp_path):
        run_child(self.backend, tmp_path / "s", CHANGE_EVERYTHING + COMMIT_TIMED)
        program = """
store = open_at('1')
store.write((b"more%06d" % i, os.urandom(1000)) for i in range(30_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000_000, 12_000_000))
try:
    store.commit('2')
except HoldfastError as error:
    say(f"{type(error).__name__}: {error}")
"""
        said = run_child(self.backend, tmp_path / "s", program)
        assert said.startswith("StoreFullError: ")
        assert "no room on the disk" in said
        assert str(tmp_path / "s") in said
        assert self.version_found(tmp_path / "s", "1", "2") == "1"

    def test_a_worker_with_little_address_space_says_so_or_works(self, tmp_path):
        program = """
with open('/proc/self/statm') as statm:
    now = int(statm.read().split()[0]) * 4096
limit = now + 300_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    version = None
    for epoch in range(12):
        store = open_at(version)
        store.write((b"%d-%d" % (epoch, i), bytes(10_000)) for i in range(3000))
        version = str(epoch)
        store.commit(version)
    say('worked')
except HoldfastError as error:
    say(f"{type(error).__name__}: {error}")
"""
        said = run_child(self.backend, tmp_path / "s", program)
        assert said == "worked" or ("StoreFullError" in said and "pyspark.memory" in said)
