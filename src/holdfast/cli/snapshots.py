"""Commands about savepoints and checkpoints on disk: no job needs to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.checkpoint.files.layout import checkpoint_directory
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.storage import dispose_savepoint
from holdfast.cli.output import UNKNOWN, CommandError, as_json, progress, size, table
from holdfast.errors import RestoreError
from holdfast.registry.entries import moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.checkpoint.files.metadata import CheckpointMetadata, OperatorSnapshot


@click.command(
    epilog="""\b
Examples:
  holdfast info /savepoints/savepoint-1a2b3c
  holdfast info --json /checkpoints/clicks/chk-12"""
)
@click.option("--json", "json", is_flag=True, help="Print JSON.")
@click.argument("path")
def info(json: bool, path: str) -> None:
    """Show what is in a checkpoint or savepoint: operators, states, sizes, source offsets.

    PATH is its directory, its _metadata file, or the directory of a job, which stands for its
    newest checkpoint. Nothing that is stored is executed.
    """
    try:
        files, metadata = find_snapshot(path)
    except RestoreError as error:
        raise CommandError(str(error), UNKNOWN) from error
    place = files.root
    if not metadata.is_savepoint:
        place = f"{place}/{checkpoint_directory(metadata.checkpoint_id)}"
    content = described(place, metadata)
    if json:
        as_json(content)
    else:
        _show(content)


def described(place: str, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The content of a snapshot, as plain data."""
    return {
        "path": place,
        "kind": "savepoint" if metadata.is_savepoint else "checkpoint",
        "id": metadata.checkpoint_id,
        "job-id": metadata.job_id,
        "job-name": metadata.job_name,
        "written-by": metadata.version,
        "format": metadata.format,
        "epoch": metadata.epoch,
        "mode": metadata.mode,
        "triggered": metadata.triggered_ms,
        "completed": metadata.completed_ms,
        "size": sum(_size(operator) for operator in metadata.operators),
        "operators": [_operator(operator) for operator in metadata.operators],
        "sources": [
            {"uid": one.uid, "name": one.name, "made-at": one.made_at, "position": one.position}
            for one in metadata.sources
        ],
        "watermarks": {
            "sources": metadata.event_times.sources,
            "operators": metadata.event_times.operators,
        },
        "unpublished-output": len(metadata.committables),
        "channel-state-rows": sum(one.rows.rows for one in metadata.channel_state),
    }


def _operator(operator: OperatorSnapshot) -> dict[str, Any]:
    return {
        "uid": operator.uid,
        "name": operator.name,
        "made-at": operator.made_at,
        "parallelism": operator.parallelism,
        "max-parallelism": operator.max_parallelism,
        "key": operator.key,
        "backends": sorted({one.backend for one in operator.subtasks}),
        "size": _size(operator),
        "states": [
            {
                "name": state["name"],
                "kind": state["kind"],
                "ttl": state.get("ttl", False),
                "schema": state["schema"],
            }
            for state in operator.states
        ],
    }


def _size(operator: OperatorSnapshot) -> int:
    return sum(one.full_size for one in operator.subtasks)


def _show(content: dict[str, Any]) -> None:
    click.echo(f"{content['kind']} {content['id']} of job {content['job-id']}", nl=False)
    click.echo(f" ({content['job-name']}), {size(content['size'])}")
    click.echo(f"  path       {content['path']}")
    click.echo(f"  completed  {moment(content['completed'])}, after epoch {content['epoch']}")
    click.echo(f"  format     {content['format']}, written by Holdfast {content['written-by']}")
    click.echo(f"  mode       {content['mode']}")
    if content["unpublished-output"]:
        click.echo(f"  output     {content['unpublished-output']} parts, published at a restore")
    if content["channel-state-rows"]:
        click.echo(f"  input      {content['channel-state-rows']:,} rows, processed at a restore")
    operators = content["operators"]
    if operators:
        click.echo()
        table(
            ("OPERATOR", "NAME", "SUBTASKS", "KEY GROUPS", "KEY", "BACKEND", "SIZE"),
            [
                (
                    *(one["uid"], one["name"], one["parallelism"], one["max-parallelism"]),
                    *(one["key"] or "-", ", ".join(one["backends"]) or "-", size(one["size"])),
                )
                for one in operators
            ],
        )
    states = list(_state_rows(operators))
    if states:
        click.echo()
        table(("STATE", "OF", "KIND", "TYPE"), states)
    if content["sources"]:
        click.echo()
        table(
            ("SOURCE", "NAME", "POSITION"),
            [(one["uid"], one["name"] or "-", _position(one)) for one in content["sources"]],
        )


def _state_rows(operators: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for operator in operators:
        for state in operator["states"]:
            kind = state["kind"] + (" with TTL" if state["ttl"] else "")
            types = " -> ".join(str(part.get("type", part["kind"])) for part in state["schema"])
            yield state["name"], operator["uid"], kind, types or "-"


def _position(source: dict[str, Any]) -> str:
    """Where a source was, as Spark's own offset where it is one."""
    parts = source["position"]
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        return "; ".join(str(part.get("offset")) for part in parts)
    return str(parts)


def dispose(paths: tuple[str, ...], json: bool) -> None:
    """Delete savepoints."""
    for path in paths:
        with progress(f"deleting {path}"):
            dispose_savepoint(path)
    if json:
        as_json({"disposed": list(paths)})
    else:
        for path in paths:
            click.echo(f"Savepoint {path} is deleted.")


@click.command(
    epilog="""\b
Example:
  holdfast savepoint rewrite /savepoints/savepoint-1a2b3c --max-parallelism 512 --to /savepoints"""
)
@click.option("--max-parallelism", type=int, required=True, help="New number of key groups.")
@click.option("--to", "target", metavar="DIR", help="Where to write; by default beside PATH.")
@click.option("--json", "json", is_flag=True, help="Print JSON.")
@click.argument("path")
def rewrite(max_parallelism: int, target: str | None, json: bool, path: str) -> None:
    """Write a copy of a savepoint with another number of key groups."""
    # Loaded when it is needed: it brings Arrow along.
    from holdfast.state_processor.max_parallelism import rewrite_max_parallelism

    where = target or path.rstrip("/").rpartition("/")[0] or "."
    with progress(f"rewriting {path}"):
        written = rewrite_max_parallelism(path, where, max_parallelism)
    as_json({"location": str(written)}) if json else click.echo(str(written))
