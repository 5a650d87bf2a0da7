"""Assigns the state in a checkpoint to the subtasks of a program."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from holdfast.checkpoint.restore.checks import restore_problems
from holdfast.checkpoint.restore.download import Restore, StoredCopy
from holdfast.checkpoint.restore.operator_states import read_operator_states
from holdfast.errors import RestoreError
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.redistribution import redistribute
from holdfast.state.store.snapshot import CANONICAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.checkpoint.files.metadata import (
        CheckpointMetadata,
        OperatorSnapshot,
        StoreSnapshot,
    )
    from holdfast.checkpoint.restore.download import RestoreTarget
    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import OperatorPlan
    from holdfast.storage.files import JobCheckpointFiles


def assign_state(
    metadata: CheckpointMetadata,
    plan: JobPlan,
    target: RestoreTarget,
    files: JobCheckpointFiles,
    local_copies: Mapping[tuple[str, int], str],
    *,
    ignore_unclaimed: bool = False,
) -> Iterator[Restore]:
    """Yield every store that has to be built to restore `metadata`.

    Args:
        metadata: The checkpoint.
        plan: The compiled job.
        target: What the stores are built for.
        files: The files of the checkpoint.
        local_copies: Local snapshots that may still exist on the executors, by uid and subtask.
        ignore_unclaimed: Whether state may be dropped.

    Raises:
        RestoreError: The checkpoint does not fit the program.
    """
    for problem in restore_problems(metadata, plan):
        if not (ignore_unclaimed and problem.can_be_allowed):
            raise RestoreError(problem.text)
    operators = plan.operators
    for snapshot in metadata.operators:
        operator = operators.get(snapshot.uid)
        if operator is not None:
            yield from _operator_restores(metadata, snapshot, operator, target, files, local_copies)


def _operator_restores(
    metadata: CheckpointMetadata,
    snapshot: OperatorSnapshot,
    operator: OperatorPlan,
    target: RestoreTarget,
    files: JobCheckpointFiles,
    local_copies: Mapping[tuple[str, int], str],
) -> Iterator[Restore]:
    shares = _operator_state(snapshot, operator, files)
    stores = {store.subtask: store for store in snapshot.subtasks}
    kind = next((store.backend for store in snapshot.subtasks), CANONICAL)
    same = snapshot.parallelism == operator.parallelism
    # Key-group ranges do not overlap, so both their ends are in order.
    keyed = sorted((one for one in stores.values() if one.key_groups), key=_key_groups)
    firsts, lasts = ([_key_groups(one)[end] for one in keyed] for end in (0, 1))
    for subtask in range(operator.parallelism):
        groups = key_groups(subtask, operator.parallelism, operator.max_parallelism)
        if same:
            chosen = [stores[subtask]] if subtask in stores else []
        else:
            chosen = keyed[bisect_left(lasts, groups.start) : bisect_left(firsts, groups.stop)]
        if not chosen and shares[subtask] is None:
            continue
        yield Restore(
            target=target,
            uid=operator.uid,
            subtask=subtask,
            version=f"restored-{metadata.checkpoint_id}-{target.job.job_attempt}",
            copies=tuple(
                StoredCopy(
                    store.files, store.version, local_copies.get((operator.uid, store.subtask))
                )
                for store in chosen
            ),
            kind=kind,
            whole=same and bool(chosen) and kind == target.backend.name,
            key_groups=groups,
            operator_state=shares[subtask],
        )


def _key_groups(store: StoreSnapshot) -> tuple[int, int]:
    assert store.key_groups is not None
    return store.key_groups


def _operator_state(
    snapshot: OperatorSnapshot, operator: OperatorPlan, files: JobCheckpointFiles
) -> list[bytes | None]:
    """The operator state of every new subtask."""
    old = read_operator_states(snapshot, files)
    if all(state is None for state in old):
        return [None] * operator.parallelism
    new = redistribute(old, operator.parallelism, operator.max_parallelism)
    return [state.encode() for state in new]
