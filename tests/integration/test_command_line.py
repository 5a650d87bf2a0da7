"""The command `holdfast`, as people use it: real processes, a real terminal, real Spark."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.registry.directory import JobRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PATIENCE = 120.0
APP = '''
"""Counts numbers by key, and keeps every count in a file."""
import sys
from pathlib import Path

from holdfast import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.key, count


here = Path(sys.argv[1])
amount = int(sys.argv[2]) if len(sys.argv) > 2 else None
env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing("200 ms", dir=here / "checkpoints")
env.set_default_savepoint_directory(here / "savepoints")
numbers = env.from_generator(
    lambda i: (i % 5, i), count=amount, rate=2000, type_info="key bigint, n bigint"
).uid("numbers")
counts = numbers.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
counts.sink_to(FileSink(here / "counts", format="json")).uid("file")
print("starting", flush=True)
env.execute("counts")
'''


class Terminal:
    """Runs commands for one user, whose home is a directory of the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program = home / "app.py"
        self.program.write_text(APP)
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(home / "state"),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.registry = JobRegistry(home / "state" / "holdfast" / "jobs")

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "holdfast.cli", *map(str, words)]

    def run(self, *words: object, code: int = 0) -> str:
        """Standard output of a command that ends with `code`."""
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout if code == 0 else done.stderr

    def start(self, job_id: str, *words: object) -> None:
        """Start the program detached."""
        self.run("run", "-d", "--job-id", job_id, "-p", 2, *words, self.program, self.home)

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("checkpoints", job_id, "--json"))
        return found

    def await_checkpoints(self, job_id: str, more: int = 2) -> None:
        until = time.monotonic() + PATIENCE
        while self.checkpoints(job_id)["counts"]["completed"] < more:
            assert time.monotonic() < until
            time.sleep(0.2)

    def end(self) -> None:
        """Kill what is left."""
        for found in self.registry.entries():
            if not found.entry.has_ended:
                os.kill(found.entry.process.pid, signal.SIGKILL)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.end()


def written(terminal: Terminal) -> dict[int, list[int]]:
    """The published counts, by key."""
    counts: dict[int, list[int]] = {}
    for file in (terminal.home / "counts").rglob("*.json"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            counts.setdefault(row["key"], []).append(row["count"])
    return counts


def test_a_service_is_run_watched_stopped_and_resumed(terminal: Terminal) -> None:
    terminal.start("clicks")
    assert "clicks" in terminal.run("list", "-r")
    terminal.await_checkpoints("clicks")
    assert int(terminal.run("checkpoint", "clicks")) > 0
    first = terminal.run("savepoint", "clicks").strip()
    assert json.loads(terminal.run("info", "--json", first))["job-id"] == "clicks"
    last = terminal.run("stop", "counts").strip()
    assert "starting" in terminal.run("logs", "clicks")
    (row,) = json.loads(terminal.run("list", "-a", "--json"))
    assert (row["status"], row["savepoint"]) == ("FINISHED", last)
    assert "fits" in terminal.run("savepoint", "diff", last, terminal.program, terminal.home)

    terminal.start("clicks-2", "-s", last)
    terminal.await_checkpoints("clicks-2")
    terminal.run("cancel", "-s", terminal.home / "final", "clicks-2")
    counts = written(terminal)
    assert set(counts) == set(range(5))
    for seen in counts.values():
        assert sorted(seen) == list(range(1, len(seen) + 1))


def test_a_killed_driver_is_listed_as_lost_and_its_command_resumes_it(terminal: Terminal) -> None:
    terminal.start("clicks")
    terminal.await_checkpoints("clicks")
    os.kill(terminal.registry.find("clicks").entry.process.pid, signal.SIGKILL)
    (row,) = json.loads(terminal.run("list", "--json"))
    assert row["status"] == "LOST"
    assert "chk-" in row["newest-checkpoint"]
    assert "its driver died" in terminal.run("stop", "clicks", code=4)

    resume = row["resume"].replace("holdfast run", " ".join(terminal.command("run")))
    subprocess.run(resume, shell=True, env=terminal.environment, check=True, timeout=PATIENCE)
    terminal.await_checkpoints("clicks")
    terminal.run("stop", "clicks")
    for seen in written(terminal).values():
        assert sorted(seen) == list(range(1, len(seen) + 1))


def test_ctrl_c_in_a_terminal_suspends_the_job_and_the_next_run_continues_it(
    terminal: Terminal,
) -> None:
    words = ("run", "--job-id", "clicks", "-p", 2, terminal.program, terminal.home)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        terminal.command(*words),
        env=terminal.environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(follower)
    shown = read_until(leader, b"checkpoint 2")
    assert b"starting" in shown
    os.write(leader, b"\x03")
    rest = read_until(leader, None)
    assert process.wait(PATIENCE) != 0
    assert b"resume:" in rest
    assert b"StackOverflowError" not in rest
    assert terminal.registry.find("clicks").entry.state == "SUSPENDED"

    terminal.run(*words, 20_000)
    for seen in written(terminal).values():
        assert sorted(seen) == list(range(1, 4001))


def read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """What a terminal shows, up to `wanted`, or up to the end."""
    shown = b""
    until = time.monotonic() + PATIENCE
    while wanted is None or wanted not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        assert ready, shown.decode(errors="replace")
        try:
            more = os.read(descriptor, 65536)
        except OSError:
            more = b""
        if not more:
            break
        shown += more
    return shown


def test_a_program_that_fails_before_its_job_says_why(terminal: Terminal) -> None:
    terminal.program.write_text("raise SystemExit('no such table')")
    error = terminal.run("run", "-d", terminal.program, code=1)
    assert "started no job" in error
    assert "no such table" in error


def test_what_the_program_sets_wins_with_a_warning(terminal: Terminal) -> None:
    terminal.program.write_text(
        APP.replace("env.enable_checkpointing", "env.set_parallelism(2)\nenv.enable_checkpointing")
    )
    words = terminal.command("run", "-p", 3, terminal.program, terminal.home, 1000)
    done = subprocess.run(
        words, env=terminal.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sets parallelism.default to 2, so 3 from `holdfast run` has no effect" in done.stderr
    assert "app.py:" in done.stderr
