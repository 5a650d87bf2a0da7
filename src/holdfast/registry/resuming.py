"""What has become of a job that does not run, and how to go on with it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.checkpoint.files.layout import checkpoint_directory
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.errors import HoldfastError
from holdfast.registry.entries import moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.registry.entries import JobEntry


def newest_checkpoint(entry: JobEntry) -> str | None:
    """Path of the job's newest checkpoint; None if there is none, or it cannot be read."""
    if entry.checkpoints is None:
        return None
    try:
        files, metadata = find_snapshot(entry.checkpoints)
    except (HoldfastError, OSError):
        return None
    return f"{files.root}/{checkpoint_directory(metadata.checkpoint_id)}"


def resume_command(entry: JobEntry, checkpoint: str | None) -> str | None:
    """The command that goes on with an ended job; None if there is nothing to go on from."""
    if entry.state == "FINISHED" and entry.savepoint is None:
        return None
    command = list(entry.command)
    if entry.savepoint is not None:
        command = with_savepoint(command, entry.savepoint)
    elif not entry.lasting_id or entry.state == "CANCELED":
        if checkpoint is None:
            return None
        command = with_savepoint(command, checkpoint)
    return f"cd {shlex.quote(entry.directory)} && {shlex.join(command)}"


def with_savepoint(command: list[str], path: str) -> list[str]:
    """A command line of `holdfast run` that starts from another snapshot.

    Example:
        >>> with_savepoint(["holdfast", "run", "-s", "old", "-p", "2", "app.py"], "/new")
        ['holdfast', 'run', '-s', '/new', '-p', '2', 'app.py']
    """
    if command[:2] != ["holdfast", "run"]:
        return command
    kept, options = command[:2], iter(command[2:])
    for word in options:
        if word in ("-s", "--from-savepoint", "--fromSavepoint"):
            next(options, None)
        elif not word.startswith(("--from-savepoint=", "--fromSavepoint=")):
            kept.append(word)
    return [*kept[:2], "-s", path, *kept[2:]]


def describe_end(entry: JobEntry) -> Iterator[str]:
    """What has happened, where the newest checkpoint is, and the command that resumes the job."""
    match entry.state:
        case "LOST":
            what = "its driver died without a word (kill -9, out of memory, a crash)"
        case "FAILED":
            what = entry.failure or "it failed"
        case "SUSPENDED":
            what = entry.failure or "it was interrupted; nothing was deleted"
        case _:
            what = entry.state.lower()
    yield f"Job {entry.job_id} ({entry.name}), started {moment(entry.started_ms)}: {what}"
    checkpoint = newest_checkpoint(entry)
    if entry.savepoint is not None:
        yield f"  savepoint: {entry.savepoint}"
    if checkpoint is not None:
        yield f"  newest checkpoint: {checkpoint}"
    if entry.log is not None:
        yield f"  output: {entry.log}"
    resume = resume_command(entry, checkpoint)
    if resume is not None:
        yield f"  resume: {resume}"
