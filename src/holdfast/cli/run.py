"""`holdfast run`: starts a program with settings, attached to the terminal or not."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.output import FAILED, CommandError, as_json, progress
from holdfast.config.checkpoint_options import (
    CLAIM_MODE,
    IGNORE_UNCLAIMED_STATE,
    RECOVERY_PATH,
    RecoveryClaimMode,
)
from holdfast.config.configuration import JOB_ID, JOB_NAME, PARALLELISM, read_setting
from holdfast.config.configuration_file import load_configuration
from holdfast.config.registry_options import REGISTRY_DIR
from holdfast.config.rest_options import REST_ENABLED
from holdfast.config.submission import Submission
from holdfast.registry.directory import JobRegistry
from holdfast.registry.resuming import describe_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.config.options import ConfigOption
    from holdfast.registry.directory import FoundEntry

LOOK: Final = 0.1
"""Seconds between two looks at a program that starts."""
LAST_LINES: Final = 20

_SPARK_SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
ON_A_CLUSTER: Final = {
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.locality.wait": "600s",
    "spark.stage.maxConsecutiveAttempts": "1",
}
"""As `holdfast.spark.session` checks them; repeated here, since the command does not load Spark."""


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  holdfast run app.py --input /data
  holdfast run -d --job-id clicks -p 8 app.py
  holdfast run -s /savepoints/savepoint-1a2b3c -n app.py
  holdfast run --master spark://host:7077 --py-files lib.zip app.py
  holdfast run -D state.backend.type=rocksdb -D spark.driver.memory=4g app.py""",
)
@click.option("-d", "--detached", is_flag=True, help="Return when the job runs; it goes on.")
@click.option(
    "-s", "--from-savepoint", "--fromSavepoint", metavar="PATH", help="Start from a snapshot."
)
@click.option(
    *("-n", "--allow-non-restored-state", "--allowNonRestoredState"),
    is_flag=True,
    help="Drop state of operators that the program no longer has.",
)
@click.option(
    *("-cm", "-rm", "--claim-mode", "--claimMode", "--restoreMode"),
    type=click.Choice([mode.value for mode in RecoveryClaimMode], case_sensitive=False),
    help="Whether the job owns the savepoint from now on.",
)
@click.option("-m", "--master", metavar="URL", help="Spark's master, such as spark://host:7077.")
@click.option("-p", "--parallelism", type=int, metavar="N", help="Default number of subtasks.")
@click.option(
    "-D", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Holdfast or of Spark."
)
@click.option("--job-id", metavar="ID", help="Permanent id: a later start continues the job.")
@click.option("--name", metavar="NAME", help="Name of the job if the program gives none.")
@click.option(
    *("-pyfs", "--py-files", "--pyFiles"),
    metavar="FILES",
    help="Modules (.py, .zip, .egg) for the executors, separated by commas.",
)
@click.option(
    *("-pyarch", "--archives", "--pyArchives"),
    metavar="FILES",
    help="Archives for the executors, such as a packed environment: env.tar.gz#env.",
)
@click.option(
    *("-pyexec", "--py-exec", "--pyExecutable"),
    metavar="PATH",
    help="Python of the executors, such as env/bin/python.",
)
@click.option("-py", "--python", "flag", is_flag=True, hidden=True)
@click.option("--json", "json", is_flag=True, help="Print the started job as JSON, with -d.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    detached: bool,
    from_savepoint: str | None,
    allow_non_restored_state: bool,
    claim_mode: str | None,
    master: str | None,
    parallelism: int | None,
    settings: tuple[str, ...],
    job_id: str | None,
    name: str | None,
    py_files: str | None,
    archives: str | None,
    py_exec: str | None,
    flag: bool,
    json: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run PROGRAM with Holdfast's settings, which it needs no change for.

    What the program sets itself takes precedence, with a warning. Ctrl-C stops the job cleanly,
    a second Ctrl-C at once. The exit code is the program's.
    """
    given: dict[ConfigOption[Any], object] = {
        RECOVERY_PATH: None if from_savepoint is None else _absolute(from_savepoint),
        IGNORE_UNCLAIMED_STATE: "true" if allow_non_restored_state else None,
        CLAIM_MODE: claim_mode,
        PARALLELISM: parallelism,
        JOB_ID: job_id,
        JOB_NAME: name,
    }
    ours = {option.key: str(value) for option, value in given.items() if value is not None}
    sparks = dict(_SPARK_SETTINGS)
    if master is not None and not master.startswith("local"):
        sparks |= ON_A_CLUSTER
    for key, value in map(_split, settings):
        if key.startswith("spark."):
            sparks[key] = value
        else:
            read_setting(key, value)
            ours[key] = value
    known = load_configuration()
    if not known.contains(REST_ENABLED):
        # Whoever runs a job wants to stop it, too.
        ours.setdefault(REST_ENABLED.key, "true")
    directory = ours.get(REGISTRY_DIR.key) or known.get(REGISTRY_DIR)
    registry = JobRegistry(None if directory is None else Path(directory))
    log = registry.new_log(job_id or Path(program).stem) if detached else None
    submission = Submission(
        settings=ours,
        master=master,
        command=_again(sys.argv),
        directory=os.getcwd(),
        log=None if log is None else str(log),
    )
    files = {"--py-files": py_files, "--archives": archives}
    environment = spark_environment(submission, sparks, files, py_exec)
    command = [sys.executable, program, *arguments]
    if log is None:
        sys.exit(_attached(command, environment, registry))
    found = _detached(command, environment, registry, log)
    if json:
        as_json({"job-id": found.entry.job_id, "name": found.entry.name, "log": str(log)})
    else:
        click.echo(f"Job {found.entry.job_id} ({found.entry.name}) runs. Its output: {log}")


def spark_environment(
    submission: Submission,
    settings: dict[str, str] | None = None,
    files: dict[str, str | None] | None = None,
    py_exec: str | None = None,
) -> dict[str, str]:
    """The environment variables of a program."""
    environment = dict(os.environ)
    submission.publish(environment)
    options = {"--master": submission.master, **(files or {})}
    before = environment.get("PYSPARK_SUBMIT_ARGS", "")
    arguments = submit_arguments(options, settings or _SPARK_SETTINGS, before)
    environment["PYSPARK_SUBMIT_ARGS"] = arguments
    if py_exec is not None:
        environment["PYSPARK_PYTHON"] = py_exec
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def submit_arguments(
    options: dict[str, str | None], settings: dict[str, str], before: str = ""
) -> str:
    """The arguments with which PySpark starts its JVM, added to those of the user.

    Example:
        >>> submit_arguments({"--master": "local[2]"}, {"spark.a": "b c"})
        "--master 'local[2]' --conf 'spark.a=b c' pyspark-shell"
    """
    words = [word for key, value in options.items() if value is not None for word in (key, value)]
    words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    kept = before.removesuffix("pyspark-shell").strip()
    return " ".join(filter(None, [kept, shlex.join(words), "pyspark-shell"]))


def _absolute(path: str) -> str:
    """The path, independent of the directory in which the program runs."""
    return path if "://" in path else os.path.abspath(path)


def _split(setting: str) -> tuple[str, str]:
    key, separator, value = setting.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="-D")
    return key.strip(), value.strip()


def _again(command: list[str]) -> list[str]:
    """The command line, with the name of the command as people type it."""
    return ["holdfast", *command[1:]]


def _attached(command: list[str], environment: dict[str, str], registry: JobRegistry) -> int:
    """Run the program in this terminal, which gives Ctrl-C to it as well."""
    with _ignored(signal.SIGINT):
        process = subprocess.Popen(command, env=environment)
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        code = process.wait()
    if code:
        for found in _jobs_of(registry, process.pid):
            for line in describe_end(found.entry):
                click.echo(line, err=True)
    return 128 - code if code < 0 else code


class _ignored:
    """Ignores a signal within the block."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._before = signal.signal(self._number, lambda number, frame: None)

    def __exit__(self, *exc: object) -> None:
        signal.signal(self._number, self._before)


def _detached(
    command: list[str], environment: dict[str, str], registry: JobRegistry, log: Path
) -> FoundEntry:
    """Start the program in a session of its own, and wait until its job runs."""
    environment["PYTHONUNBUFFERED"] = "1"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with progress(f"starting {command[1]}") as tick:
        while True:
            ended = process.poll() is not None
            jobs = list(_jobs_of(registry, process.pid))
            if jobs:
                return jobs[0]
            if ended:
                break
            tick()
            time.sleep(LOOK)
    last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-LAST_LINES:])
    raise CommandError(
        f"{command[1]} ended with exit code {process.returncode}, and started no job. The end of "
        f"its output ({log}):\n{last}",
        FAILED,
    )


def _jobs_of(registry: JobRegistry, pid: int) -> Iterator[FoundEntry]:
    """Jobs that a process of this machine has started."""
    for found in registry.entries():
        process = found.entry.process
        if process.pid == pid and process.can_be_seen:
            yield found
