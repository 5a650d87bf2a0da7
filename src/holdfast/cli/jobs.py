"""Commands about jobs: they find a job in the registry, and speak to its driver."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.output import (
    UNKNOWN,
    CommandError,
    as_json,
    progress,
    size,
    table,
)
from holdfast.cli.programs import diff
from holdfast.cli.remote import answered, client_at, find_remote, registry, status_of
from holdfast.cli.snapshots import dispose, rewrite
from holdfast.errors import RegistryError
from holdfast.registry.entries import moment
from holdfast.registry.resuming import describe_end, newest_checkpoint, resume_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.registry.directory import FoundEntry

FOLLOW: Final = 0.3
"""Seconds between two looks at a log."""
RECENT: Final = 20

_json = click.option("--json", "json", is_flag=True, help="Print JSON.")
_rest = click.option("--rest", metavar="URL", help="Address of the driver, without a registry.")
_token = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the token for --rest.",
)
_form = click.option(
    "--type",
    "form",
    type=click.Choice(["canonical", "native"], case_sensitive=False),
    default="canonical",
    show_default=True,
    help="Tables that every tool reads, or the files of the state backend.",
)


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options with which a job is found."""
    return _rest(_token(_json(command)))


@click.command(
    name="list",
    epilog="""\b
Examples:
  holdfast list
  holdfast list -a --json""",
)
@click.option("-r", "--running", is_flag=True, help="Only jobs that run.")
@click.option("-s", "--scheduled", is_flag=True, help="Only jobs that are being restarted.")
@click.option("-a", "--all", "all_", is_flag=True, help="Jobs that have ended, too.")
@remote_options
def list_jobs(
    running: bool,
    scheduled: bool,
    all_: bool,
    rest: str | None,
    token_file: str | None,
    json: bool,
) -> None:
    """List jobs. A job that failed or was lost is shown with the command that resumes it."""
    if rest is not None:
        shown = answered(client_at(rest, token_file).jobs)
        rows = [
            {"job-id": one["jid"], "name": one["name"], "status": one["state"]} for one in shown
        ]
    else:
        rows = [_row(found) for found in registry().entries()]
    wanted = {"RUNNING"} if running else set()
    if scheduled:
        wanted.add("RESTARTING")
    if not wanted and not all_:
        rows = [row for row in rows if row["status"] not in ("FINISHED", "CANCELED")]
    elif wanted:
        rows = [row for row in rows if row["status"] in wanted]
    if json:
        as_json(rows)
    elif not rows:
        click.echo("There are no such jobs.")
    else:
        _show_jobs(rows)


def _row(found: FoundEntry) -> dict[str, Any]:
    entry = found.entry
    row: dict[str, Any] = {
        "job-id": entry.job_id,
        "name": entry.name,
        "status": entry.state if entry.has_ended else status_of(entry),
        "user": entry.user,
        "started": entry.started_ms,
        "ended": entry.ended_ms,
        "pid": entry.process.pid,
        "rest": entry.url,
        "log": entry.log,
        "failure": entry.failure,
        "savepoint": entry.savepoint,
    }
    if entry.has_ended:
        row["newest-checkpoint"] = newest_checkpoint(entry)
        row["resume"] = resume_command(entry, row["newest-checkpoint"])
        row["description"] = list(describe_end(entry))
    return row


def _show_jobs(rows: list[dict[str, Any]]) -> None:
    table(
        ("JOB", "NAME", "STATUS", "USER", "STARTED"),
        [
            (
                *(row["job-id"], row["name"], row["status"]),
                *(row.get("user", "-"), moment(row.get("started"))),
            )
            for row in rows
        ],
    )
    for row in rows:
        if row["status"] in ("FAILED", "LOST", "SUSPENDED"):
            click.echo()
            click.echo("\n".join(row["description"]))


class _SavepointGroup(click.Group):
    """`savepoint JOB` takes a savepoint; `savepoint diff` and `rewrite` are commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "take", _take, args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the job belong to `take`.
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["--", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_SavepointGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  holdfast savepoint clicks /savepoints
  holdfast savepoint clicks --type native
  holdfast savepoint --dispose /savepoints/savepoint-1a2b3c
  holdfast savepoint diff /savepoints/savepoint-1a2b3c app.py
  holdfast savepoint rewrite /savepoints/savepoint-1a2b3c --max-parallelism 512

\b
Options of `holdfast savepoint JOB [DIR]`:
  --type [canonical|native]  tables that every tool reads, or the backend's files
  -d, --dispose              delete the savepoints at the given paths
  --rest URL, --token-file   the driver's address, without a registry
  --json                     print JSON""",
)
def savepoint() -> None:
    """Take a savepoint of a running JOB: savepoint JOB [DIR].

    The directory is the job's default directory of savepoints if DIR is not given.
    """


@click.command(name="take")
@click.option("-d", "--dispose", "disposes", is_flag=True)
@_form
@remote_options
@click.argument("words", nargs=-1, required=True)
def _take(
    disposes: bool,
    form: str,
    rest: str | None,
    token_file: str | None,
    json: bool,
    words: tuple[str, ...],
) -> None:
    if disposes:
        dispose(words, json)
        return
    if len(words) > 2:
        raise click.UsageError("give a job, and a directory if you like: savepoint JOB [DIR]")
    remote = find_remote(words[0], rest, token_file)
    directory = words[1] if len(words) == 2 else None
    with progress("taking a savepoint") as tick:
        location = remote.savepoint(directory, form, tick, cancels=False)
    as_json({"location": location}) if json else click.echo(location)


savepoint.add_command(diff, "diff")
savepoint.add_command(rewrite, "rewrite")


@click.command(
    epilog="""\b
Examples:
  holdfast stop clicks
  holdfast stop --drain -p /savepoints clicks"""
)
@click.option("-d", "--drain", is_flag=True, help="Advance event time to its end first.")
@click.option(
    "-p",
    "--savepoint-path",
    "--savepointPath",
    "directory",
    metavar="DIR",
    help="Of the savepoint.",
)
@_form
@remote_options
@click.argument("job")
def stop(
    drain: bool,
    directory: str | None,
    form: str,
    rest: str | None,
    token_file: str | None,
    json: bool,
    job: str,
) -> None:
    """Stop JOB with a savepoint: all that was read is processed and published."""
    remote = find_remote(job, rest, token_file)
    with progress(f"stopping {job} with a savepoint") as tick:
        location = remote.stop(directory, form, tick, drain=drain)
    as_json({"location": location}) if json else click.echo(location)


@click.command(
    epilog="""\b
Examples:
  holdfast cancel clicks
  holdfast cancel -s /savepoints clicks"""
)
@click.option(
    *("-s", "--with-savepoint", "--withSavepoint", "directory"),
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Take a savepoint first, in DIR or in the job's default directory.",
)
@_form
@remote_options
@click.argument("job", required=False)
def cancel(
    directory: str | None,
    form: str,
    rest: str | None,
    token_file: str | None,
    json: bool,
    job: str | None,
) -> None:
    """Cancel JOB. Its checkpoints stay if the job's settings retain them."""
    if job is None:
        # `cancel -s JOB`: what looks like a directory is the job.
        job, directory = directory, ""
    if not job:
        raise click.UsageError("Missing argument 'JOB'.")
    remote = find_remote(job, rest, token_file)
    location = None
    with progress(f"cancelling {job}") as tick:
        if directory is None:
            remote.cancel(tick)
        else:
            location = remote.savepoint(directory or None, form, tick, cancels=True)
    if json:
        as_json({"status": "CANCELED", "location": location})
    else:
        click.echo(location or f"Job {job} is cancelled.")


@click.command(
    epilog="""\b
Example:
  holdfast checkpoint clicks"""
)
@remote_options
@click.argument("job")
def checkpoint(rest: str | None, token_file: str | None, json: bool, job: str) -> None:
    """Take a checkpoint of JOB now, and print its number."""
    remote = find_remote(job, rest, token_file)
    with progress("taking a checkpoint") as tick:
        number = remote.checkpoint(tick)
    as_json({"checkpoint-id": number}) if json else click.echo(number)


@click.command(
    epilog="""\b
Example:
  holdfast checkpoints clicks"""
)
@remote_options
@click.argument("job")
def checkpoints(rest: str | None, token_file: str | None, json: bool, job: str) -> None:
    """Show the checkpoints of JOB: when, how long, how large, and why one failed."""
    history = find_remote(job, rest, token_file).checkpoints()
    if json:
        as_json(history)
        return
    counts = history["counts"]
    click.echo(", ".join(f"{number} {what.replace('_', ' ')}" for what, number in counts.items()))
    rows = [
        (
            *(one["id"], "savepoint" if one["is_savepoint"] else "checkpoint", one["status"]),
            *(moment(one["trigger_timestamp"]), f"{one['end_to_end_duration']} ms"),
            *(size(one["state_size"]), size(one["checkpointed_size"])),
            one.get("failure_message") or "",
        )
        for one in history["history"][:RECENT]
    ]
    if rows:
        click.echo()
        table(("ID", "KIND", "STATUS", "TRIGGERED", "TOOK", "STATE", "UPLOADED", ""), rows)


@click.command(
    epilog="""\b
Example:
  holdfast rescale clicks -p 8"""
)
@click.option("-p", "--parallelism", type=int, required=True, help="New number of subtasks.")
@remote_options
@click.argument("job")
def rescale(
    parallelism: int, rest: str | None, token_file: str | None, json: bool, job: str
) -> None:
    """Let the running JOB go on with another number of subtasks, from a checkpoint."""
    remote = find_remote(job, rest, token_file)
    with progress(f"rescaling {job} to {parallelism} subtasks") as tick:
        remote.rescale(parallelism, tick)
    if json:
        as_json({"parallelism": parallelism})
    else:
        click.echo(f"Job {job} runs with {parallelism} subtasks.")


@click.command(
    epilog="""\b
Example:
  holdfast logs -f clicks"""
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, or Ctrl-C.")
@click.option("-n", "--lines", type=int, default=None, help="Only that many lines of the end.")
@_json
@click.argument("job")
def logs(follow: bool, lines: int | None, json: bool, job: str) -> None:
    """Print the output of JOB, if it was started detached (run -d)."""
    try:
        found = registry().find(job)
    except RegistryError as error:
        raise CommandError(str(error), UNKNOWN) from error
    log = found.entry.log
    if log is None:
        raise CommandError(
            f"job {job} was not started detached, so its output went to its own terminal", UNKNOWN
        )
    try:
        file = Path(log).open(errors="replace")  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"the output of job {job} cannot be read: {error}", UNKNOWN) from error
    with file:
        text = file.read()
        kept = text.splitlines(keepends=True)
        kept = kept if lines is None else kept[len(kept) - lines :]
        if json:
            as_json({"log": log, "lines": [line.rstrip("\n") for line in kept]})
            return
        sys.stdout.write("".join(kept))
        while follow:
            sys.stdout.flush()
            ended = registry().find(job).entry.has_ended
            sys.stdout.write(file.read())
            if ended:
                break
            time.sleep(FOLLOW)
