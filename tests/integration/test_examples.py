"""The examples run as users run them, and print what their texts promise."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.faults import VARIABLE

ROOT = Path(__file__).parents[2]


def printed(example: str, *arguments: str) -> list[str]:
    """What an example prints."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"))
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def end_of_killed(example: str, *arguments: str, fault: dict[str, object]) -> int:
    """How an example ends whose driver is killed by a fault."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"), **{VARIABLE: json.dumps([fault])})
    run = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        return run.wait(timeout=240)
    finally:
        # Spark's JVM would end a little later by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def test_consumer_lag_is_producer_minus_consumer() -> None:
    assert [json.loads(line) for line in printed("consumer_lag.py")] == [
        {"timestamp": 1555516800, "lag": {"consumer0": 5, "consumer1": 8, "consumer2": 3}}
    ]


def test_url_count_counts_every_url() -> None:
    assert [json.loads(line) for line in printed("url_count.py")] == [
        {"url": "/api/a", "count": 1},
        {"url": "/api/b", "count": 1},
        {"url": "/api/a", "count": 2},
    ]


def test_the_state_machine_alerts_on_invalid_events() -> None:
    assert printed("state_machine.py") == [
        "Alert(source_address=2, state='INITIAL', type='login')",
        "Alert(source_address=1, state='ACTIVE', type='open')",
        "Alert(source_address=1, state='INITIAL', type='request')",
    ]


def test_the_pattern_evaluator_finds_matches_of_the_pattern_in_force() -> None:
    # Sorted: two subtasks share the users.
    assert sorted(printed("pattern_evaluator.py")) == [
        "Match(user=1001, first='login', second='logout')",
        "Match(user=1001, first='login', second='logout')",
        "Match(user=1002, first='add', second='logout')",
    ]


def test_event_time_timers_report_every_silence_once() -> None:
    assert sorted(printed("event_time_timers.py")) == [
        "Silence(device='fan', since_minute=24)",
        "Silence(device='pump', since_minute=21)",
        "Silence(device='pump', since_minute=44)",
        "Silence(device='pump', since_minute=6)",
    ]


def test_the_demo_shows_progress_and_ends_with_a_summary() -> None:
    lines = printed("demo.py")
    assert any("[####" in line and "epoch" in line for line in lines)
    assert any("500,000 in, 500,000 counts out" in line for line in lines)
    assert any("status     FINISHED" in line for line in lines)


@pytest.mark.slow
def test_the_buffering_sink_loses_nothing_when_its_driver_is_killed(tmp_path: Path) -> None:
    def arguments(name: str) -> tuple[str, ...]:
        return (str(tmp_path / name), "--checkpoints", str(tmp_path / f"{name}-checkpoints"))

    def flushed(name: str) -> list[str]:
        return (tmp_path / name).read_text().splitlines()

    [undisturbed] = printed("buffering_sink.py", *arguments("undisturbed"))
    assert undisturbed.startswith("started anew")
    kill = {"point": "after-metadata", "action": "kill", "checkpoint": 3}
    kill["once"] = str(tmp_path / "marker")
    assert end_of_killed("buffering_sink.py", *arguments("killed"), fault=kill) == -signal.SIGKILL
    before = flushed("killed")
    assert len(before) < len(flushed("undisturbed"))

    [again] = printed("buffering_sink.py", *arguments("killed"))
    assert again.startswith("started from checkpoint 3;")
    # As sets: the file takes no part in checkpoints, so what was written after the last one
    # is written again.
    assert set(flushed("killed")) == set(flushed("undisturbed"))
    assert len(flushed("undisturbed")) == len(set(flushed("undisturbed"))) == 84 // 7


@pytest.mark.slow
def test_the_file_sink_writes_every_row_once_though_its_driver_is_killed(tmp_path: Path) -> None:
    arguments = (str(tmp_path / "orders"), "--checkpoints", str(tmp_path / "checkpoints"))
    kill = {"point": "before-publish", "action": "kill", "checkpoint": 3}
    kill["once"] = str(tmp_path / "marker")
    assert end_of_killed("file_sink.py", *arguments, fault=kill) == -signal.SIGKILL
    before = {path.name for path in (tmp_path / "orders").rglob("part-*")}

    [again] = printed("file_sink.py", *arguments)
    assert again.startswith("started from checkpoint 3; 120 orders, each once")
    assert before < {path.name for path in (tmp_path / "orders").rglob("part-*")}
    assert not (tmp_path / "orders" / ".holdfast").exists()


@pytest.mark.slow
def test_the_ledger_takes_every_entry_once_though_its_driver_is_killed(tmp_path: Path) -> None:
    arguments = (str(tmp_path / "ledger"), "--checkpoints", str(tmp_path / "checkpoints"))
    kill = {"point": "after-publish", "action": "kill", "checkpoint": 3}
    kill["once"] = str(tmp_path / "marker")
    assert end_of_killed("two_phase_commit.py", *arguments, fault=kill) == -signal.SIGKILL
    before = {path.name for path in (tmp_path / "ledger" / "committed").iterdir()}

    [again] = printed("two_phase_commit.py", *arguments)
    assert again.startswith("started from checkpoint 3; 120 entries, each once")
    assert before < {path.name for path in (tmp_path / "ledger" / "committed").iterdir()}
