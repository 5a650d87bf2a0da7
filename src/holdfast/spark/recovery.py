"""What a restore has to do: a checkpoint held against a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.api.graph import Kind
from holdfast.errors import RestoreError
from holdfast.spark.snapshot_transfer import Restore, StoredCopy
from holdfast.state.key_groups import key_groups
from holdfast.state.redistribution import OperatorStateSnapshot, redistribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.api.backends import StateBackend
    from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorSnapshot
    from holdfast.checkpoint.storage import JobCheckpointFiles
    from holdfast.runtime.plan import OperatorPlan
    from holdfast.spark.compiler import JobPlan
    from holdfast.spark.epochs import JobIdentity
    from holdfast.state.machine import ProcessIdentity


@dataclass(frozen=True)
class Ground:
    """Where the restored stores are to stand."""

    job: JobIdentity
    owner: ProcessIdentity
    backend: StateBackend
    local_copies: Mapping[tuple[str, int], str]
    """Local snapshots that may still be on the executors, by uid and subtask."""


def restores(
    metadata: CheckpointMetadata,
    plan: JobPlan,
    ground: Ground,
    files: JobCheckpointFiles,
    *,
    ignore_unclaimed: bool = False,
) -> Iterator[Restore]:
    """Every store that has to be built so that the job goes on from `metadata`.

    Raises:
        RestoreError: The checkpoint does not fit the program.
    """
    operators = {op.uid: op for level in plan.levels for op in level.operators}
    if not ignore_unclaimed:
        _check_waiting(metadata, plan)
        _check_claimed(metadata, operators)
        _check_sources(metadata, plan)
    for snapshot in metadata.operators:
        operator = operators.get(snapshot.uid)
        if operator is not None:
            _check(snapshot, operator, ground.backend)
            yield from _operator_restores(metadata, snapshot, operator, ground, files)


def _operator_restores(
    metadata: CheckpointMetadata,
    snapshot: OperatorSnapshot,
    operator: OperatorPlan,
    ground: Ground,
    files: JobCheckpointFiles,
) -> Iterator[Restore]:
    job = ground.job
    shares = _operator_state(snapshot, operator, files)
    stores = {store.subtask: store for store in snapshot.subtasks}
    same = snapshot.parallelism == operator.parallelism
    for subtask in range(operator.parallelism):
        groups = key_groups(subtask, operator.parallelism, operator.max_parallelism)
        if same:
            chosen = [stores[subtask]] if subtask in stores else []
        else:
            chosen = [
                store
                for store in stores.values()
                if store.key_groups is not None
                and store.key_groups[0] < groups.stop
                and groups.start <= store.key_groups[1]
            ]
        if not chosen and shares[subtask] is None:
            continue
        yield Restore(
            job_id=job.job_id,
            incarnation=job.incarnation,
            local_dir=job.local_dir,
            owner=ground.owner,
            backend=ground.backend,
            uid=operator.uid,
            subtask=subtask,
            version=f"restored-{metadata.checkpoint_id}-{job.incarnation}",
            copies=tuple(
                StoredCopy(
                    store.files,
                    store.version,
                    ground.local_copies.get((operator.uid, store.subtask)),
                )
                for store in chosen
            ),
            whole=same and bool(chosen),
            key_groups=groups,
            operator_state=shares[subtask],
        )


def _operator_state(
    snapshot: OperatorSnapshot, operator: OperatorPlan, files: JobCheckpointFiles
) -> list[bytes | None]:
    """The operator state of every new subtask."""
    old: list[OperatorStateSnapshot | None] = [None] * snapshot.parallelism
    for store in snapshot.subtasks:
        if store.operator_state is not None:
            data = files.read_bytes(store.operator_state)
            old[store.subtask] = OperatorStateSnapshot.decode(data)
    if all(state is None for state in old):
        return [None] * operator.parallelism
    new = redistribute(old, operator.parallelism, operator.max_parallelism)
    return [state.encode() for state in new]


def _check_claimed(metadata: CheckpointMetadata, operators: Mapping[str, OperatorPlan]) -> None:
    unclaimed = [op for op in metadata.operators if op.uid not in operators and op.subtasks]
    if unclaimed:
        named = "; ".join(f"{op.name!r} (uid {op.uid!r})" for op in unclaimed)
        raise RestoreError(
            f"cannot map the state in checkpoint {metadata.checkpoint_id} to the program: it has "
            f"no operator for that of {named}. Give the operators their old uids back, or set "
            "execution.state-recovery.ignore-unclaimed-state to true to drop that state"
        )


def _check_waiting(metadata: CheckpointMetadata, plan: JobPlan) -> None:
    """Refuse to lose output that is not published, or input that is not processed."""
    sinks, inputs = set(plan.frame_sinks), set()
    for level in plan.levels:
        for place, operator in enumerate(level.operators):
            if operator.kind is Kind.WRITER:
                sinks.add(operator.uid)
            # Another parallelism may chain an operator, which then reads no channel of its own.
            channels = sum(place in places for places in level.entries.values())
            inputs |= {(operator.uid, number) for number in range(channels)}
    output = {one.uid for one in metadata.committables} - sinks
    waiting = {one.uid for one in metadata.channel_state if (one.uid, one.input) not in inputs}
    if output or waiting:
        what = "output that no sink" if output else "input that no operator"
        raise RestoreError(
            f"checkpoint {metadata.checkpoint_id} holds {what} of the program takes (uid "
            f"{', '.join(map(repr, sorted(output or waiting)))}). Start the program with the uids "
            "and the parallelism that it was taken with, or set "
            "execution.state-recovery.ignore-unclaimed-state to true to drop it"
        )


def _check_sources(metadata: CheckpointMetadata, plan: JobPlan) -> None:
    uids = {source.uid for source in plan.sources}
    unclaimed = [source.uid for source in metadata.sources if source.uid not in uids]
    if unclaimed:
        raise RestoreError(
            f"checkpoint {metadata.checkpoint_id} has the positions of sources that the program "
            f"does not have: {', '.join(map(repr, unclaimed))}. A source under another uid starts "
            "from its beginning, upon state that has seen its elements already. Give the sources "
            "their old uids back, or set execution.state-recovery.ignore-unclaimed-state to true"
        )


def _check(snapshot: OperatorSnapshot, operator: OperatorPlan, backend: StateBackend) -> None:
    who = f"operator {operator.name!r} (uid {operator.uid!r})"
    if snapshot.max_parallelism != operator.max_parallelism:
        raise RestoreError(
            f"max parallelism mismatch: {who} has {operator.max_parallelism} and its state was "
            f"written with {snapshot.max_parallelism}; set_max_parallelism("
            f"{snapshot.max_parallelism}), or leave it out to take over the stored one"
        )
    kinds = {store.backend for store in snapshot.subtasks} - {backend.name}
    if kinds:
        raise RestoreError(
            f"{who}: its state was written by the {kinds.pop()} backend, and the job uses "
            f"{backend.name}; a checkpoint can be restored with its own backend only"
        )
