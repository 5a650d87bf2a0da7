"""Commands that need no running job: info, list, logs, savepoint --dispose, rewrite."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.registry.directory import JobRegistry, default_registry, user_name
from holdfast.registry.entries import JobEntry
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from click.testing import Result

GOLDEN = (
    Path(__file__).parents[2] / "formats" / "savepoints" / "format-5-canonical-tables-2-hashmap"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def holdfast(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def entry(job_id: str = "clicks", **fields: Any) -> JobEntry:
    lost = with_fields(ProcessIdentity.current(), started="1")
    given = {
        "name": "counts",
        "status": "RUNNING",
        "user": user_name(),
        "process": lost,
        "started_ms": 1_000,
        "lasting_id": True,
        "command": ["holdfast", "run", "-d", "--job-id", "clicks", "app.py"],
        "directory": "/srv/my jobs",
        **fields,
    }
    return JobEntry(job_id=job_id, **given)


def registered(**fields: Any) -> JobRegistry:
    registry = JobRegistry(default_registry())
    registry.enter(entry(**fields))
    return registry


def test_info_shows_operators_states_and_offsets() -> None:
    shown = holdfast("info", GOLDEN)
    assert shown.exit_code == 0, shown.output
    assert "savepoint" in shown.output
    for word in ("books", "count", "value", "map", "int -> str", '{"index": 6039}'):
        assert word in shown.output


def test_info_as_json_has_the_schemas() -> None:
    content = json.loads(holdfast("info", "--json", GOLDEN / "_metadata").output)
    books = next(one for one in content["operators"] if one["uid"] == "books")
    assert {state["name"] for state in books["states"]} >= {"count", "elements", "thirds"}
    assert content["kind"] == "savepoint"
    assert content["size"] > 0


def test_info_about_nothing_says_so_and_exits_with_3(tmp_path: Path) -> None:
    shown = holdfast("info", tmp_path)
    assert shown.exit_code == 3
    assert "no complete savepoint or checkpoint" in shown.output


def test_a_savepoint_is_disposed_of(tmp_path: Path) -> None:
    copy = tmp_path / "savepoint-1"
    shutil.copytree(GOLDEN, copy)
    shown = holdfast("savepoint", "--dispose", copy)
    assert shown.exit_code == 0, shown.output
    assert not (copy / "_metadata").exists()


def test_disposing_of_nothing_fails_and_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    shown = holdfast("savepoint", "-d", tmp_path)
    assert shown.exit_code == 1
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_savepoint_is_rewritten_beside_itself(tmp_path: Path) -> None:
    copy = tmp_path / "savepoint-1"
    shutil.copytree(GOLDEN, copy)
    shown = holdfast("savepoint", "rewrite", copy, "--max-parallelism", 16, "--json")
    assert shown.exit_code == 0, shown.output
    location = json.loads(shown.output)["location"]
    content = json.loads(holdfast("info", "--json", location).output)
    assert {one["max-parallelism"] for one in content["operators"] if one["key"]} == {16}


def test_without_jobs_the_list_says_so() -> None:
    assert holdfast("list").output == "There are no such jobs.\n"
    assert json.loads(holdfast("list", "--json").output) == []


def test_a_lost_job_is_listed_with_the_command_that_resumes_it() -> None:
    registered()
    shown = holdfast("list").output
    assert "LOST" in shown
    assert "its driver died" in shown
    assert "cd '/srv/my jobs' && holdfast run -d --job-id clicks app.py" in shown


def test_a_job_without_a_lasting_id_resumes_from_its_newest_checkpoint() -> None:
    registered(lasting_id=False, checkpoints=str(GOLDEN), status="FAILED", failure="no more disk")
    (row,) = json.loads(holdfast("list", "-a", "--json").output)
    assert row["failure"] == "no more disk"
    assert row["resume"] is not None
    assert f"holdfast run -s {row['newest-checkpoint']} -d" in row["resume"]


def test_finished_jobs_are_listed_only_with_a() -> None:
    registered(status="FINISHED")
    assert holdfast("list").output == "There are no such jobs.\n"
    assert "FINISHED" in holdfast("list", "-a").output
    assert json.loads(holdfast("list", "-r", "--json").output) == []


def test_logs_of_a_detached_job_are_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    registered(log=str(log))
    assert holdfast("logs", "clicks").output == "one\ntwo\nthree\n"
    assert holdfast("logs", "-n", 1, "clicks").output == "three\n"
    # The job has ended, so following ends too.
    assert holdfast("logs", "-f", "clicks").output == "one\ntwo\nthree\n"
    assert json.loads(holdfast("logs", "--json", "clicks").output)["lines"][0] == "one"


def test_logs_of_a_job_in_a_terminal_are_not_to_be_had() -> None:
    registered()
    shown = holdfast("logs", "clicks")
    assert shown.exit_code == 3
    assert "went to its own terminal" in shown.output


@pytest.mark.parametrize(
    "words", [("logs", "views"), ("stop", "views"), ("savepoint", "views"), ("cancel", "views")]
)
def test_an_unknown_job_exits_with_3_and_names_the_known_ones(words: tuple[str, ...]) -> None:
    registered()
    shown = holdfast(*words)
    assert shown.exit_code == 3
    assert "known jobs: clicks" in shown.output


@pytest.mark.parametrize(
    "words", [("stop",), ("cancel",), ("savepoint",), ("info",), ("rescale", "clicks"), ("run",)]
)
def test_missing_arguments_exit_with_2(words: tuple[str, ...]) -> None:
    assert holdfast(*words).exit_code == 2


def test_a_job_that_has_ended_cannot_be_controlled() -> None:
    registered()
    shown = holdfast("stop", "clicks")
    assert shown.exit_code == 4
    assert "its driver died" in shown.output
    assert "resume:" in shown.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    assert "_HOLDFAST_COMPLETE" in holdfast("completion", shell).output


def test_every_command_has_help_with_an_example() -> None:
    for name in main.commands:
        shown = holdfast(name, "--help")
        assert shown.exit_code == 0
        assert f"holdfast {name}" in shown.output, name
