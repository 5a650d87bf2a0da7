"""The command `holdfast` and its subcommands."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast._version import VERSION
from holdfast.cli.jobs import (
    cancel,
    checkpoint,
    checkpoints,
    list_jobs,
    logs,
    rescale,
    savepoint,
    stop,
)
from holdfast.cli.output import FAILED
from holdfast.cli.programs import explain
from holdfast.cli.run import run
from holdfast.cli.snapshots import info
from holdfast.errors import HoldfastError

_SHELLS = ("bash", "zsh", "fish")


class _Commands(click.Group):
    """Commands in the order of their use; errors of Holdfast are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(FAILED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes:
  0  it worked
  1  the operation, or the program, failed
  2  an argument is wrong
  3  there is no such job, savepoint or file
  4  the driver of the job does not answer""",
)
@click.version_option(VERSION, "-v", "--version", prog_name="holdfast")
def main() -> None:
    """Run jobs with managed state on Spark, and operate them."""


@click.command(
    epilog="""\b
Example, for bash:
  holdfast completion bash >> ~/.bashrc"""
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "holdfast", "_HOLDFAST_COMPLETE").source())


for command in (
    *(run, list_jobs, savepoint, checkpoint, checkpoints, stop, cancel, rescale, logs),
    *(info, explain, completion),
):
    main.add_command(command)
