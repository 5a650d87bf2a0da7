"""Where local state lies, who owns it, and when it goes away."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, StateError, StoreFullError
from holdfast.state.store.directories import (
    KeptSnapshots,
    claim_job,
    delete_job,
    delete_snapshots,
    file_name,
    job_directory,
    local_root,
    make_private,
    snapshot_directory,
    store_directory,
    sweep_dead_jobs,
    tidy_job,
)
from holdfast.state.store.process import ProcessIdentity

SAY_IDENTITY = """
import dataclasses, json
from holdfast.state.store.process import ProcessIdentity
print(json.dumps(dataclasses.asdict(ProcessIdentity.current())))
"""


@pytest.fixture
def alive() -> ProcessIdentity:
    return ProcessIdentity.current()


@pytest.fixture(scope="module")
def dead() -> ProcessIdentity:
    path = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.check_output(
        [sys.executable, "-c", SAY_IDENTITY], env=os.environ | {"PYTHONPATH": path}
    )
    return ProcessIdentity(**json.loads(out))


def filled_job(root: Path, job_id: str, owner: ProcessIdentity) -> Path:
    job = claim_job(str(root), job_id, owner)
    store = store_directory(str(root), job_id, "1", "counts", 0, owner.run)
    make_private(store)
    (store / "state").write_bytes(b"x")
    return job


def filled_jobs(root: Path, owners: dict[str, ProcessIdentity]) -> list[Path]:
    """Several, which are there together: to make one sweeps what the dead have left."""
    for job_id in owners:
        filled_job(root, job_id, ProcessIdentity.current())
    return [claim_job(str(root), job_id, owner) for job_id, owner in owners.items()]


# Where


def test_the_setting_decides_before_sparks_directories_and_the_systems() -> None:
    spark = {"SPARK_LOCAL_DIRS": "/disk1,/disk2", "LOCAL_DIRS": "/yarn"}
    assert local_root("/set", spark) == Path("/set")
    assert local_root(None, spark) == Path("/disk1")
    assert local_root("", {"LOCAL_DIRS": " /yarn ,/other"}) == Path("/yarn")
    assert local_root(None, {"SPARK_LOCAL_DIRS": ""}).is_dir()


def test_a_relative_setting_does_not_depend_on_later_changes_of_directory() -> None:
    assert local_root("state", {}) == Path.cwd() / "state"


def test_a_store_has_its_place_by_job_job_attempt_operator_and_subtask() -> None:
    assert store_directory("/r", "job-1", "2", "counts", 7) == Path("/r/holdfast-job-1/2/counts/7")
    assert job_directory("/r", "job-1") == Path("/r/holdfast-job-1")


@given(st.text(), st.text())
def test_file_names_never_clash_and_stay_in_their_directory(one: str, other: str) -> None:
    for name in (file_name(one), file_name(other)):
        assert 0 < len(name.encode()) < 200
        assert "/" not in name
        assert name not in (".", "..")
    assert (file_name(one).lower() == file_name(other).lower()) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Counts", "counts"), ("a/b", "a_b"), ("a" * 300, "a" * 301), ("", "~"), ("ä", "_")],
)
def test_similar_names_are_kept_apart(one: str, other: str) -> None:
    assert file_name(one).lower() != file_name(other).lower()


def test_every_directory_that_is_created_is_private(tmp_path: Path, alive: ProcessIdentity) -> None:
    filled_job(tmp_path / "new" / "root", "j", alive)
    made = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert len(made) == 5
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new", *made)} == {0o700}


def test_a_root_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"state\.local-dir"):
        make_private(tmp_path / "file" / "below")


# Owners


def test_a_process_knows_whether_another_is_dead(alive, dead) -> None:
    assert not alive.is_certainly_dead()
    assert dead.is_certainly_dead()
    assert replace(alive, boot="an-earlier-boot").is_certainly_dead()
    assert replace(alive, started="0").is_certainly_dead(), "its process id was used again"


@pytest.mark.parametrize(
    "elsewhere", [{"host": "another"}, {"namespace": "pid:[1]"}, {"boot": "unknown"}]
)
def test_a_process_that_cannot_be_seen_from_here_counts_as_alive(dead, elsewhere) -> None:
    assert not replace(dead, **elsewhere).is_certainly_dead()


def test_claiming_again_keeps_the_stores_and_names_the_new_owner(tmp_path, alive, dead) -> None:
    job = filled_job(tmp_path, "j", dead)
    assert claim_job(str(tmp_path), "j", alive) == job
    assert json.loads((job / "owner.json").read_text())["pid"] == os.getpid()
    assert sweep_dead_jobs(str(tmp_path)) == []
    assert (job / "1" / "counts" / "0" / "state").exists()


def test_what_somebody_else_put_there_is_not_used(tmp_path, alive) -> None:
    (tmp_path / "elsewhere").mkdir()
    job_directory(str(tmp_path), "j").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="not a directory of this user"):
        claim_job(str(tmp_path), "j", alive)


# Going away


def test_a_deleted_job_is_gone_and_can_be_deleted_again(tmp_path, alive) -> None:
    job = filled_job(tmp_path, "j", alive)
    other = filled_job(tmp_path, "k", alive)
    delete_job(str(tmp_path), "j", "")
    delete_job(str(tmp_path), "j", "")
    delete_job(str(tmp_path / "nowhere"), "j", "")
    assert not job.exists()
    assert other.exists()


def test_a_sweep_takes_the_dead_and_leaves_the_rest(tmp_path, alive, dead) -> None:
    alive_one, *gone, foreign = filled_jobs(
        tmp_path,
        {
            "alive": alive,
            "dead": dead,
            "rebooted": replace(alive, boot="an-earlier-boot"),
            "foreign": replace(dead, host="another"),
        },
    )
    kept = [alive_one, foreign]
    unknown = tmp_path / "holdfast-unknown"
    unknown.mkdir()
    broken = tmp_path / "holdfast-broken"
    broken.mkdir()
    (broken / "owner.json").write_text("{")
    later = tmp_path / "holdfast-later"
    later.mkdir()
    (later / "owner.json").write_text('{"format": 2}')
    assert sweep_dead_jobs(str(tmp_path)) == gone
    assert sorted(p for p in tmp_path.iterdir() if p.is_dir()) == sorted(
        [*kept, unknown, broken, later]
    )


def test_a_new_job_sweeps_before_it_comes(tmp_path, alive, dead) -> None:
    """On a cluster nobody else sweeps the disks of the executors."""
    [left] = filled_jobs(tmp_path, {"left": dead})
    filled_job(tmp_path, "next", alive)
    assert not left.exists()
    assert sweep_dead_jobs(str(tmp_path)) == []


def elsewhere(owner: ProcessIdentity) -> ProcessIdentity:
    """A driver that cannot be seen from here."""
    return replace(owner, host="another")


def used_by(monkeypatch: pytest.MonkeyPatch, executor: ProcessIdentity) -> None:
    monkeypatch.setattr(ProcessIdentity, "parent", lambda: executor)


def test_of_a_driver_elsewhere_what_dead_executors_left_is_swept(
    tmp_path, alive, dead, monkeypatch
) -> None:
    used_by(monkeypatch, dead)
    gone = filled_job(tmp_path, "gone", elsewhere(alive))
    used_by(monkeypatch, alive)
    kept = filled_job(tmp_path, "kept", elsewhere(dead))
    assert not gone.exists(), "the next one that comes sweeps"
    assert sweep_dead_jobs(str(tmp_path)) == []
    assert kept.exists()


def test_one_executor_that_lives_or_cannot_be_seen_keeps_them_all(
    tmp_path, alive, dead, monkeypatch
) -> None:
    """Several hosts, or containers, may share one directory."""
    for other in (alive, elsewhere(dead)):
        owner = replace(elsewhere(alive), run=other.host.replace("/", "-"))
        for executor in (dead, other):
            used_by(monkeypatch, executor)
            job = claim_job(str(tmp_path), "job", owner)
        assert len(list(job.glob("used-by-*"))) == 2
        assert sweep_dead_jobs(str(tmp_path)) == []
    for broken in job.glob("used-by-*"):
        broken.write_text("{")
    assert sweep_dead_jobs(str(tmp_path)) == []


def test_executors_of_a_driver_that_can_be_seen_do_not_matter(tmp_path, alive) -> None:
    job = filled_job(tmp_path, "j", alive)
    assert list(job.glob("used-by-*")) == []


# Two drivers of one job


@pytest.fixture
def two_runs(tmp_path, alive) -> tuple[ProcessIdentity, ProcessIdentity]:
    """A driver, and another that has taken the job over; the first has not noticed yet."""
    one, other = replace(alive, run="one"), replace(alive, run="other")
    filled_job(tmp_path, "j", one)
    filled_job(tmp_path, "j", other)
    return one, other


def stores(root: Path, run: str) -> list[str]:
    job = job_directory(str(root), "j", run)
    return sorted(str(path.relative_to(job)) for path in job.rglob("state"))


def test_a_run_that_ends_deletes_what_is_its_own(tmp_path, two_runs) -> None:
    delete_job(str(tmp_path), "j", "one")
    assert stores(tmp_path, "one") == []
    assert stores(tmp_path, "other") == ["1/counts/0/state"]


def test_a_new_job_attempt_deletes_what_is_its_own(tmp_path, two_runs) -> None:
    tidy_job(str(tmp_path), "j", run="one", job_attempt="2")
    assert stores(tmp_path, "one") == []
    assert stores(tmp_path, "other") == ["1/counts/0/state"]


def test_a_task_that_comes_late_does_not_become_the_owner_of_the_others_state(
    tmp_path, two_runs, dead
) -> None:
    """Its driver dies then, and its state is swept."""
    job = claim_job(str(tmp_path), "j", replace(dead, run="one"))
    assert sweep_dead_jobs(str(tmp_path)) == [job]
    assert stores(tmp_path, "other") == ["1/counts/0/state"]


def test_a_run_deletes_what_those_that_it_has_replaced_have_left(tmp_path, two_runs, alive) -> None:
    """On its executors nobody can tell whether the driver before it is dead."""
    filled_job(tmp_path, "j", replace(alive, run="of another storage"))
    tidy_job(str(tmp_path), "j", run="other", job_attempt="1", replaced=["one", "never here"])
    assert stores(tmp_path, "one") == []
    assert stores(tmp_path, "other") == ["1/counts/0/state"]
    assert stores(tmp_path, "of another storage") == ["1/counts/0/state"]


def test_runs_and_jobs_never_share_a_directory() -> None:
    names = [("a", ""), ("a", "b"), ("a.b", ""), ("a", "b.c"), ("a.b", "c"), ("ab", "")]
    assert len({job_directory("/r", *name) for name in names}) == len(names)


def test_snapshots_that_are_wanted_outlast_their_job_attempt(tmp_path, alive) -> None:
    filled_job(tmp_path, "j", alive)
    made = {
        (job_attempt, checkpoint, subtask): snapshot_directory(
            str(tmp_path), "j", job_attempt, checkpoint
        )
        / "counts"
        / f"{subtask}-1"
        for job_attempt in ("1", "2")
        for checkpoint in (4, 5)
        for subtask in (0, 1)
    }
    for directory in made.values():
        make_private(directory / "store")
    wanted = made["1", 4, 0]
    tidy_job(str(tmp_path), "j", run="", job_attempt="2", snapshots=[str(wanted)])
    left = {name for name, directory in made.items() if directory.exists()}
    assert left == {("1", 4, 0)} | {name for name in made if name[0] == "2"}
    assert (wanted / "store").is_dir()
    assert not made["1", 5, 0].parent.parent.exists(), "nor are empty directories left"


def made_snapshots(
    root, *names: tuple[str, int, str, int]
) -> dict[tuple[str, int, str, int], Path]:
    """Local snapshots, by job attempt, checkpoint, operator and subtask."""
    made = {
        name: snapshot_directory(str(root), "j", name[0], name[1]) / name[2] / f"{name[3]}-7"
        for name in names
    }
    for directory in made.values():
        make_private(directory / "store")
    return made


def test_a_task_that_comes_late_leaves_snapshots_that_are_younger_than_its_list(tmp_path) -> None:
    made = made_snapshots(
        tmp_path, ("1", 3, "n", 0), ("1", 4, "n", 0), ("1", 5, "n", 0), ("2", 6, "n", 0)
    )
    kept = KeptSnapshots(5, under_way=(4,))
    delete_snapshots(str(tmp_path), "j", run="", but=kept, stores=[("n", 0)])
    left = {name[1] for name, directory in made.items() if directory.exists()}
    assert left == {4, 5, 6}
    names = {path.name for path in job_directory(str(tmp_path), "j").glob("*.snapshots/*")}
    assert names == {"chk-4", "chk-5", "chk-6"}, "nothing else is left"


def test_a_task_looks_for_older_backups_of_its_own_stores_alone(tmp_path) -> None:
    stores = [("a-b", 1), ("a-b", 10), ("a", 1)]
    both = [("1", checkpoint, *store) for checkpoint in (3, 4) for store in stores]
    made = made_snapshots(tmp_path, *both, ("1", 3, "same", 1))
    kept = KeptSnapshots(5, complete=(3, 4))
    own = [("a-b", 1), ("same", 1)]
    delete_snapshots(str(tmp_path), "j", run="", but=kept, stores=own)
    gone = {name for name, directory in made.items() if not directory.exists()}
    assert gone == {("1", 3, "a-b", 1)}


def test_a_sweep_finishes_what_a_killed_one_began(tmp_path) -> None:
    for kind in ("gone", "new"):
        left = tmp_path / f".holdfast-{kind}-{os.getuid()}-1"
        (left / "1").mkdir(parents=True)
    assert sweep_dead_jobs(str(tmp_path)) == []
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_a_root_that_is_not_there_needs_no_sweep(tmp_path) -> None:
    assert sweep_dead_jobs(str(tmp_path / "nowhere")) == []


def test_many_sweeps_and_claims_at_once_neither_fail_nor_take_the_living(
    tmp_path, alive, dead
) -> None:
    filled_jobs(tmp_path, {f"dead-{number}": dead for number in range(20)})
    swept: list[Path] = []
    failures: list[BaseException] = []

    def attempt(number: int) -> None:
        try:
            claim_job(str(tmp_path), f"alive-{number}", alive)
            swept.extend(sweep_dead_jobs(str(tmp_path)))
            delete_job(str(tmp_path), "dead-0", "")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sweep_dead_jobs(str(tmp_path))
    assert failures == []
    assert len(swept) == len(set(swept))
    left = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert left == [f"holdfast-alive-{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EIO, StateError),
        (errno.EROFS, StateError),
        (errno.EACCES, ConfigurationError),
    ],
)
def test_only_what_a_user_can_configure_is_an_error_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """A job restarts after all others: they pass with the trouble of the machine."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        make_private(tmp_path / "local")
    assert type(caught.value) is kind
