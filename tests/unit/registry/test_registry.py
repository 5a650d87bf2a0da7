"""The registry of jobs: who runs, who died, and how to go on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.errors import RegistryError
from holdfast.registry.directory import JobRegistry, default_registry, user_name
from holdfast.registry.entries import JobEntry
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from pathlib import Path


def entry(job_id: str = "job", **fields: Any) -> JobEntry:
    given = {
        "name": "counts",
        "status": "RUNNING",
        "user": user_name(),
        "process": ProcessIdentity.current(),
        "started_ms": 1_000,
        "lasting_id": True,
        "command": ["holdfast", "run", "app.py"],
        "directory": "/srv",
        **fields,
    }
    return JobEntry(job_id=job_id, **given)


def dead_process() -> ProcessIdentity:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return with_fields(ProcessIdentity.current(), pid=process.pid, started="1")


@pytest.fixture
def registry(tmp_path: Path) -> JobRegistry:
    return JobRegistry(tmp_path / "jobs")


def test_a_registry_that_does_not_exist_is_empty(registry: JobRegistry) -> None:
    assert registry.entries() == []


def test_entries_are_listed_newest_first(registry: JobRegistry) -> None:
    for job_id, started in (("a", 1), ("b", 3), ("c", 2)):
        registry.enter(entry(job_id, started_ms=started))
    assert [found.entry.job_id for found in registry.entries()] == ["b", "c", "a"]


def test_an_entry_is_written_again_in_its_place(registry: JobRegistry) -> None:
    path = registry.enter(entry())
    registry.enter(entry(status="FINISHED"), path)
    (found,) = registry.entries()
    assert found.path == path
    assert found.entry.status == "FINISHED"
    assert os.listdir(path.parent) == [path.name]


def test_a_job_whose_process_died_is_lost(registry: JobRegistry) -> None:
    registry.enter(entry(process=dead_process()))
    assert registry.find("job").entry.state == "LOST"


def test_another_process_with_the_same_pid_is_not_the_job(registry: JobRegistry) -> None:
    other = with_fields(ProcessIdentity.current(), started="1")
    registry.enter(entry(process=other))
    assert registry.find("job").entry.state == "LOST"


def test_a_process_of_another_machine_is_not_called_dead(registry: JobRegistry) -> None:
    elsewhere = with_fields(ProcessIdentity.current(), host="elsewhere", pid=1)
    registry.enter(entry(process=elsewhere))
    assert registry.find("job").entry.state == "RUNNING"


def test_a_job_that_has_ended_is_not_lost(registry: JobRegistry) -> None:
    registry.enter(entry(process=dead_process(), status="FAILED"))
    assert registry.find("job").entry.state == "FAILED"


def test_a_job_is_found_by_id_name_and_beginning(registry: JobRegistry) -> None:
    registry.enter(entry("0badcafe", name="clicks"))
    registry.enter(entry("12345678", name="views"))
    assert registry.find("0badcafe").entry.name == "clicks"
    assert registry.find("views").entry.job_id == "12345678"
    assert registry.find("0bad").entry.name == "clicks"


def test_an_unknown_job_is_refused_with_the_known_ones(registry: JobRegistry) -> None:
    registry.enter(entry("clicks"))
    with pytest.raises(RegistryError, match=r"no job 'views'.*known jobs: clicks"):
        registry.find("views")


def test_an_ambiguous_name_is_refused(registry: JobRegistry) -> None:
    registry.enter(entry("a1"))
    registry.enter(entry("a2"))
    with pytest.raises(RegistryError, match="fits several jobs: a1, a2"):
        registry.find("a")


def test_the_run_that_lives_is_found_among_several(registry: JobRegistry) -> None:
    registry.enter(entry(started_ms=1))
    registry.enter(entry(started_ms=2, process=dead_process()))
    assert registry.find("job").entry.started_ms == 1


def test_files_that_are_no_entries_are_left_out(registry: JobRegistry) -> None:
    own = registry.own_directory()
    (own / "broken.json").write_text("{")
    (own / "other.json").write_text('{"job_id": 7}')
    (own / "link.json").symlink_to("/etc/passwd")
    os.mkfifo(own / "pipe.json")
    registry.enter(entry())
    assert [found.entry.job_id for found in registry.entries()] == ["job"]


def test_a_directory_that_others_can_write_is_refused(registry: JobRegistry) -> None:
    registry.own_directory().chmod(0o777)
    with pytest.raises(RegistryError, match="chmod go-w"):
        registry.enter(entry())


def test_a_link_in_place_of_the_own_directory_is_refused(
    registry: JobRegistry, tmp_path: Path
) -> None:
    registry.directory.mkdir()
    (registry.directory / user_name()).symlink_to(tmp_path)
    with pytest.raises(RegistryError, match="belongs to another user"):
        registry.enter(entry())


def test_a_registry_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("")
    with pytest.raises(RegistryError, match=r"set registry.dir to a directory of yours"):
        JobRegistry(tmp_path / "jobs").enter(entry())


def test_old_entries_of_ended_jobs_are_pruned_with_their_logs(registry: JobRegistry) -> None:
    for number in range(5):
        path = registry.enter(entry(f"job-{number}", started_ms=number, status="FINISHED"))
        path.with_suffix(".log").write_text("")
    registry.enter(entry("old", started_ms=-1))
    registry.prune(keep=2)
    assert [found.entry.job_id for found in registry.entries()] == ["job-4", "job-3", "old"]
    assert len(list(registry.own_directory().glob("*.log"))) == 2


def test_a_log_is_private(registry: JobRegistry) -> None:
    log = registry.new_log("a/b c")
    assert log.parent == registry.own_directory()
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_default_registry_is_below_the_state_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_registry() == tmp_path / "holdfast" / "jobs"


GOLDEN = """{
  "format": 1, "job_id": "clicks", "name": "counts", "status": "RUNNING", "user": "ann",
  "process": {"host": "h/m", "boot": "b", "namespace": "n", "pid": 7, "started": "99", "run": ""},
  "started_ms": 1, "ended_ms": null, "lasting_id": true, "command": ["holdfast", "run", "app.py"],
  "directory": "/srv", "log": null, "checkpoints": "/chk/clicks", "savepoint": null,
  "failure": null, "url": "http://127.0.0.1:8081", "token_file": "/t", "of-a-later-release": 1
}"""


def test_an_entry_of_format_1_is_read() -> None:
    read = msgspec.json.decode(GOLDEN, type=JobEntry)
    assert read.process.pid == 7
    assert read.checkpoints == "/chk/clicks"


def test_a_process_that_nobody_has_reaped_is_dead(registry: JobRegistry) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity._of(process.pid, "")
    registry.enter(entry(process=identity))
    assert registry.find("job").entry.state == "RUNNING"
    process.kill()
    # It has ended, and stays in the table of processes until `wait`.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert registry.find("job").entry.state == "LOST"
    process.communicate()
