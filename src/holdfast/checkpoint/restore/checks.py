"""Checks whether a checkpoint or savepoint fits a program, without reading state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from holdfast.api.streams.graph import OperatorKind
from holdfast.checkpoint.files.layout import TASK_OWNED
from holdfast.config.parallelism import check_parallelism
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.runtime.windows.contents import CONTENTS
from holdfast.runtime.windows.merging import OPEN_WINDOWS
from holdfast.state.store.directories import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.api.streams.graph import Node
    from holdfast.checkpoint.files.metadata import (
        CheckpointMetadata,
        OperatorSnapshot,
        SourceSnapshot,
    )
    from holdfast.job.model import JobPlan, QueryPosition, SourcePosition
    from holdfast.runtime.plan import OperatorPlan


@dataclass(frozen=True, slots=True)
class RestoreProblem:
    """A reason to refuse a restore."""

    text: str
    """The error message, with what to do."""
    can_be_allowed: bool = False
    """Whether `ignore-unclaimed-state` allows it."""


def restore_problems(metadata: CheckpointMetadata, plan: JobPlan) -> Iterator[RestoreProblem]:
    """Yield all reasons why a compiled program cannot restore a checkpoint."""
    yield from unclaimed_problems(metadata, plan)
    operators = plan.operators
    for snapshot in metadata.operators:
        if snapshot.uid in operators:
            yield from max_parallelism_problems(snapshot, operators[snapshot.uid])
            yield from window_problems(snapshot, operators[snapshot.uid])


def unclaimed_problems(metadata: CheckpointMetadata, plan: JobPlan) -> Iterator[RestoreProblem]:
    """Yield problems with state, positions and rows that the program does not claim."""
    yield from _waiting(metadata, plan)
    yield from _unclaimed_operators(metadata, plan.operators)
    yield from _unclaimed_sources(metadata, plan)


def max_parallelism_problems(
    snapshot: OperatorSnapshot, operator: OperatorPlan
) -> Iterator[RestoreProblem]:
    """Yield a problem if the operator's max parallelism differs from that of its state."""
    if snapshot.max_parallelism != operator.max_parallelism:
        yield RestoreProblem(
            f"max parallelism mismatch: operator {operator.name!r} (uid {operator.uid!r}) has "
            f"{operator.max_parallelism} and its state was written with "
            f"{snapshot.max_parallelism}; set_max_parallelism({snapshot.max_parallelism}), or "
            "leave it out to take over the stored one, or bring the state to another with "
            "rewrite_max_parallelism"
        )


def parallelism_problems(
    snapshot: OperatorSnapshot, node: Node, parallelism: int
) -> Iterator[RestoreProblem]:
    """Yield a problem if the operator's parallelism exceeds the stored max parallelism."""
    try:
        check_parallelism(parallelism, snapshot.max_parallelism, f"operator {node}")
    except ConfigurationError as error:
        yield RestoreProblem(str(error))


def window_problems(snapshot: OperatorSnapshot, operator: OperatorPlan) -> Iterator[RestoreProblem]:
    """Yield a problem if windows merge now that did not, or the other way round."""
    stored = {state["name"] for state in snapshot.states}
    if (
        operator.kind not in (OperatorKind.WINDOW, OperatorKind.WINDOW_JOIN)
        or CONTENTS not in stored
    ):
        return
    merged, merges = OPEN_WINDOWS in stored, operator.details.merges
    if merged != merges:
        was, now = ("merge", "do not") if merged else ("do not merge", "do")
        yield RestoreProblem(
            f"operator {operator.name!r} (uid {operator.uid!r}): the windows in its state {was}, "
            f"and those of the program {now}, so their contents could never come out. Continue "
            "with windows of the same kind, or give the operator another uid, under which it "
            "starts empty"
        )


def _waiting(metadata: CheckpointMetadata, plan: JobPlan) -> Iterator[RestoreProblem]:
    """Yield problems with unpublished output or unprocessed input that would be lost."""
    sinks, inputs = set(plan.frame_sinks), set()
    for stage in plan.stages:
        for place, operator in enumerate(stage.operators):
            if operator.kind is OperatorKind.WRITER:
                sinks.add(operator.uid)
            # With another parallelism an operator may be chained, and then reads no channel.
            channels = sum(place in places for places in stage.entries.values())
            inputs |= {(operator.uid, number) for number in range(channels)}
    output = {one.uid for one in metadata.committables} - sinks
    waiting = {one.uid for one in metadata.channel_state if (one.uid, one.input) not in inputs}
    for what, uids in (("output that no sink", output), ("input that no operator", waiting)):
        if uids:
            yield RestoreProblem(
                f"checkpoint {metadata.checkpoint_id} holds {what} of the program takes (uid "
                f"{', '.join(map(repr, sorted(uids)))}). Start the program with the uids and the "
                "parallelism that it was taken with, or set "
                "execution.state-recovery.ignore-unclaimed-state to true to drop it",
                can_be_allowed=True,
            )


def _unclaimed_operators(
    metadata: CheckpointMetadata, operators: dict[str, OperatorPlan]
) -> Iterator[RestoreProblem]:
    unclaimed = [op for op in metadata.operators if op.uid not in operators and op.subtasks]
    if unclaimed:
        named = "; ".join(map(_named, unclaimed))
        yield RestoreProblem(
            f"cannot map the state in checkpoint {metadata.checkpoint_id} to the program: it has "
            f"no operator for that of {named}. Give the operators their old uids back, or set "
            "execution.state-recovery.ignore-unclaimed-state to true to drop that state",
            can_be_allowed=True,
        )


def _unclaimed_sources(metadata: CheckpointMetadata, plan: JobPlan) -> Iterator[RestoreProblem]:
    uids = {source.uid for source in plan.sources}
    unclaimed = [source for source in metadata.sources if source.uid not in uids]
    if unclaimed:
        yield RestoreProblem(
            f"checkpoint {metadata.checkpoint_id} has the positions of sources that the program "
            f"does not have: {'; '.join(map(_named, unclaimed))}. A source under another uid "
            "starts from its beginning, upon state that has seen its elements already. Give the "
            "sources their old uids back, or set "
            "execution.state-recovery.ignore-unclaimed-state to true",
            can_be_allowed=True,
        )


def _named(snapshot: OperatorSnapshot | SourceSnapshot) -> str:
    """Name, uid, and where the program had it."""
    if not snapshot.name:
        return repr(snapshot.uid)
    made_at = f", made at {snapshot.made_at}" if snapshot.made_at else ""
    return f"{snapshot.name!r} (uid {snapshot.uid!r}{made_at})"


SCRATCH: Final = "source-"
_SCRATCH: Final = rf"/holdfast-query-[0-9a-f]{{32}}/{SCRATCH}\d+/[^/]+"


def check_static_rows(position: QueryPosition, plan: JobPlan, *, one_pass: bool = False) -> None:
    """Raise RestoreError if `static_rows_problems` finds any."""
    for problem in static_rows_problems(position, plan, one_pass=one_pass):
        raise RestoreError(problem)


def static_rows_problems(
    position: QueryPosition, plan: JobPlan, *, one_pass: bool = False
) -> Iterator[str]:
    """Yield problems with static DataFrames whose rows would be confused or processed again.

    Args:
        position: How far the sources of the snapshot were read.
        plan: The program.
        one_pass: Whether the program reads everything in one pass.
    """
    for uid in _static_sources(position, plan):
        read = [leaf for leaf in position.sources[uid] if leaf.offset is not None]
        if read and one_pass:
            yield (
                f"source {uid!r} is a static DataFrame whose rows the snapshot contains, and the "
                "program reads everything in one pass, those rows included. Give it another uid "
                "to process them once more, or use an unbounded or a streaming source in the "
                "program"
            )
        elif not all(_is_of_static_rows(leaf, uid) for leaf in read):
            yield (
                f"source {uid!r} is a static DataFrame, and was another kind of source when the "
                "snapshot was taken, so it is unknown which of its rows the state contains. "
                "Continue with the original source. To process all rows of the DataFrame, give it "
                "another uid and allow state that is not restored"
            )


def _static_sources(position: QueryPosition, plan: JobPlan) -> list[str]:
    return [
        source.uid
        for source in plan.sources
        if source.keeps_files and source.uid in position.sources
    ]


def _is_of_static_rows(leaf: SourcePosition, uid: str) -> bool:
    if leaf.log is None:
        return False
    kept = re.compile(rf".*(/{TASK_OWNED}/{re.escape(file_name(uid))}/[^/]+|{_SCRATCH})")
    paths = (unquote(msgspec.json.decode(entry)["path"]) for entry in leaf.log.entries)
    return all(map(kept.fullmatch, paths))
