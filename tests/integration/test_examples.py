"""The examples run as users run them, and print what their texts promise.

Starting Spark takes longer than most of them. So those that need no process of their own run one
after the other in one, on one session; see `tests/support/example_runner.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast._faults import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Printed = Callable[[str], list[str]]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUNNER = Path(__file__).parents[1] / "support" / "example_runner.py"
TIMEOUT = 240
"""Seconds that an example may take."""

pytestmark = pytest.mark.spark


class ExampleProcess:
    """A process that runs examples one after the other, and is replaced if one fails."""

    def __init__(self, log: Path) -> None:
        """What Spark says goes to `log`."""
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def printed(self, example: str) -> list[str]:
        """What an example prints."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{EXAMPLES / example}\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
        line = process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            pytest.fail(f"{example} gave no answer; the process said:\n{self._log.read_text()}")
        answer = json.loads(line)
        if answer["failure"]:
            self.kill()
            pytest.fail(f"{example} failed:\n{answer['failure']}")
        lines: list[str] = answer["printed"].splitlines()
        return lines

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(RUNNER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=dict(os.environ, PYTHONPATH=str(ROOT / "src")),
                start_new_session=True,
            )
        return self._process

    def stop(self) -> None:
        """Let the process end by itself; Spark tidies up."""
        process, self._process = self._process, None
        if process is not None:
            # Its input is closed, which it takes for the end.
            process.communicate(timeout=TIMEOUT)

    def kill(self) -> None:
        """End the process and Spark at once; another is started when it is needed."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    """What an example prints that needs a session only, and no arguments."""
    process = ExampleProcess(tmp_path_factory.mktemp("examples") / "log")
    yield process.printed
    process.stop()


def printed_alone(example: str, *arguments: str) -> list[str]:
    """What an example prints in a process of its own."""
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "src")),
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def end_of_killed(example: str, *arguments: str, fault: dict[str, object]) -> int:
    """How an example ends whose driver is killed by a fault."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"), **{VARIABLE: json.dumps([fault])})
    run = subprocess.Popen(
        [sys.executable, str(EXAMPLES / example), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        return run.wait(timeout=TIMEOUT)
    finally:
        # Spark's JVM would end a little later by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def test_consumer_lag_is_producer_minus_consumer(printed: Printed) -> None:
    assert [json.loads(line) for line in printed("consumer_lag.py")] == [
        {"timestamp": 1555516800, "lag": {"consumer0": 5, "consumer1": 8, "consumer2": 3}}
    ]


def test_url_count_counts_every_url(printed: Printed) -> None:
    assert [json.loads(line) for line in printed("url_count.py")] == [
        {"url": "/api/a", "count": 1},
        {"url": "/api/b", "count": 1},
        {"url": "/api/a", "count": 2},
    ]


def test_the_state_machine_alerts_on_invalid_events(printed: Printed) -> None:
    assert printed("state_machine.py") == [
        "Alert(source_address=2, state='INITIAL', type='login')",
        "Alert(source_address=1, state='ACTIVE', type='open')",
        "Alert(source_address=1, state='INITIAL', type='request')",
    ]


def test_the_pattern_evaluator_finds_matches_of_the_pattern_in_force(printed: Printed) -> None:
    # Sorted: two subtasks share the users.
    assert sorted(printed("pattern_evaluator.py")) == [
        "Match(user=1001, first='login', second='logout')",
        "Match(user=1001, first='login', second='logout')",
        "Match(user=1002, first='add', second='logout')",
    ]


def test_event_time_timers_report_every_silence_once(printed: Printed) -> None:
    assert sorted(printed("event_time_timers.py")) == [
        "Silence(device='fan', since_minute=24)",
        "Silence(device='pump', since_minute=21)",
        "Silence(device='pump', since_minute=44)",
        "Silence(device='pump', since_minute=6)",
    ]


def test_deduplication_lets_every_payment_pass_once_an_hour(printed: Printed) -> None:
    assert printed("deduplication.py") == [
        "Payment(id='p1', cents=500, minute=0)",
        "Payment(id='p2', cents=120, minute=1)",
        "Payment(id='p3', cents=80, minute=10)",
        "Payment(id='p4', cents=999, minute=90)",
        "Payment(id='p5', cents=10, minute=92)",
        "Payment(id='p1', cents=500, minute=95)",
    ]


def test_user_sessions_end_after_half_an_hour_of_silence(printed: Printed) -> None:
    assert sorted(printed("user_sessions.py")) == [
        "Session(user='ann', first_minute=0, last_minute=40, path='home > book > cart')",
        "Session(user='ann', first_minute=95, last_minute=99, path='home > book')",
        "Session(user='bob', first_minute=5, last_minute=5, path='home')",
        "Session(user='bob', first_minute=50, last_minute=61, path='help > book')",
    ]


def test_hourly_and_daily_counts_count_every_visit_in_both(printed: Printed) -> None:
    assert printed("hourly_and_daily_counts.py") == [
        "/docs 01 Mar 00:00 - 02 Mar 00:00: 1",
        "/docs 01 Mar 22:00 - 01 Mar 23:00: 1",
        "/docs 02 Mar 00:00 - 02 Mar 01:00: 2",
        "/docs 02 Mar 00:00 - 03 Mar 00:00: 2",
        "/home 01 Mar 00:00 - 02 Mar 00:00: 5",
        "/home 01 Mar 22:00 - 01 Mar 23:00: 2",
        "/home 01 Mar 23:00 - 02 Mar 00:00: 3",
        "/home 02 Mar 00:00 - 02 Mar 01:00: 1",
        "/home 02 Mar 00:00 - 03 Mar 00:00: 1",
    ]


def test_the_online_model_gives_the_alarm_where_a_machine_leaves_its_line(
    printed: Printed,
) -> None:
    assert printed("online_model.py") == [
        "mill draws 13.0, expected 8.0",
        "press draws 35.0, expected 51.0",
    ]


def test_the_same_hour_yesterday_is_that_of_the_day_before_and_no_other(printed: Printed) -> None:
    assert sorted(printed("same_hour_yesterday.py")) == [
        "north 01 Mar 09 h: 3, a day ago 0",
        "north 01 Mar 10 h: 1, a day ago 0",
        "north 02 Mar 09 h: 5, a day ago 3",
        "north 03 Mar 09 h: 1, a day ago 5",
        "south 01 Mar 09 h: 1, a day ago 0",
        "south 03 Mar 09 h: 1, a day ago 0",
    ]


def test_the_demo_shows_progress_and_ends_with_a_summary(printed: Printed) -> None:
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

    [undisturbed] = printed_alone("buffering_sink.py", *arguments("undisturbed"))
    assert undisturbed.startswith("started anew")
    kill = {"point": "after-metadata", "action": "kill", "checkpoint": 3}
    kill["once"] = str(tmp_path / "marker")
    assert end_of_killed("buffering_sink.py", *arguments("killed"), fault=kill) == -signal.SIGKILL
    before = flushed("killed")
    assert len(before) < len(flushed("undisturbed"))

    [again] = printed_alone("buffering_sink.py", *arguments("killed"))
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

    [again] = printed_alone("file_sink.py", *arguments)
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

    [again] = printed_alone("two_phase_commit.py", *arguments)
    assert again.startswith("started from checkpoint 3; 120 entries, each once")
    assert before < {path.name for path in (tmp_path / "ledger" / "committed").iterdir()}
