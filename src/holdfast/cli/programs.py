"""Commands that ask a program about its job without running it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.output import FAILED, CommandError, as_json, progress
from holdfast.cli.run import LOOK, spark_environment
from holdfast.config.submission import Preview, Submission

_PASS_ON = {"allow_interspersed_args": False}


@click.command(
    context_settings=_PASS_ON,
    epilog="""\b
Example:
  holdfast explain app.py --input /data""",
)
@click.option("-p", "--parallelism", type=int, metavar="N", help="Default number of subtasks.")
@click.option("--json", "json", is_flag=True, help="Print JSON.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def explain(parallelism: int | None, json: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Show the job of PROGRAM: operators, uids, states and Spark's plan. Nothing runs."""
    settings = {} if parallelism is None else {"parallelism.default": str(parallelism)}
    answer = ask(program, arguments, settings)
    as_json(answer) if json else click.echo(answer["explanation"])


@click.command(
    context_settings=_PASS_ON,
    epilog="""\b
Example:
  holdfast savepoint diff /savepoints/savepoint-1a2b3c app.py""",
)
@click.option(
    *("-n", "--allow-non-restored-state", "--allowNonRestoredState"),
    is_flag=True,
    help="Allow state of operators that the program no longer has.",
)
@click.option("--json", "json", is_flag=True, help="Print JSON.")
@click.argument("path")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def diff(
    allow_non_restored_state: bool,
    json: bool,
    path: str,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Say whether PROGRAM could start from the savepoint or checkpoint at PATH, and why not.

    The exit code is 1 if it could not. Nothing runs.
    """
    where = path if "://" in path else os.path.abspath(path)
    answer = ask(
        program,
        arguments,
        savepoint=where,
        allow_non_restored_state=allow_non_restored_state,
    )
    text = answer.pop("text")
    as_json(answer) if json else click.echo(text)
    sys.exit(0 if answer["fits"] else FAILED)


def ask(
    program: str,
    arguments: tuple[str, ...],
    settings: dict[str, str] | None = None,
    **preview: Any,
) -> dict[str, Any]:
    """Run the program up to its first job, and return its answer."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        answer = Path(directory, "answer.json")
        submission = Submission(
            settings=settings or {}, preview=Preview(answer=str(answer), **preview)
        )
        environment = spark_environment(submission)
        # What the program prints is not part of the answer.
        process = subprocess.Popen(
            [sys.executable, program, *arguments], env=environment, stdout=sys.stderr
        )
        with progress(f"asking {program}") as tick:
            while process.poll() is None:
                tick()
                time.sleep(LOOK)
        if answer.exists():
            found: dict[str, Any] = msgspec.json.decode(answer.read_bytes())
            return found
    why = (
        f"it ended with exit code {process.returncode}"
        if process.returncode
        else "it never called execute()"
    )
    raise CommandError(f"{program} has shown no job: {why}")
