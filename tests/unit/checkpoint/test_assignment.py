"""Which stores a restore has to build: a checkpoint held against a program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast import (
    CheckpointedFunction,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    ListStateDescriptor,
    SinkFunction,
)
from holdfast.checkpoint.files.metadata import OperatorSnapshot, StoreSnapshot
from holdfast.checkpoint.restore.assignment import assign_state
from holdfast.checkpoint.restore.download import RestoreTarget
from holdfast.errors import RestoreError
from holdfast.job.model import JobIdentity
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.store.process import ProcessIdentity
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import inline
from tests.support.checkpoints import checkpoint
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.restore.download import Restore
    from holdfast.job.model import JobPlan

TARGET = RestoreTarget(
    JobIdentity("job", "Job", "/local", "2-1-abc"),
    ProcessIdentity.current(),
    HashMapStateBackend(),
)


class Keeping(SinkFunction, CheckpointedFunction):
    def initialize_state(self, ctx: Any) -> None:
        ctx.get_operator_state_store().get_list_state(ListStateDescriptor("n", int))

    def invoke(self, value: Any, context: Any) -> None:
        return None

    def snapshot_state(self, ctx: Any) -> None:
        return None


def counting(parallelism: int, max_parallelism: int | None = None) -> JobPlan:
    program = Program(parallelism=parallelism, max_parallelism=max_parallelism)
    program.source(ROWS).uid("events").key_by("k").process(Count(), ROWS).uid("count").name("Count")
    return program.compile()


def keeping(parallelism: int) -> JobPlan:
    program = Program(parallelism=parallelism)
    program.source(ROWS).uid("events").rebalance().add_sink(Keeping()).uid("keep")
    return program.compile()


def metadata(
    uid: str = "count",
    parallelism: int = 2,
    *,
    subtasks: range | None = None,
    keyed: bool = True,
    states: list[OperatorStateSnapshot | None] | None = None,
    **changes: Any,
) -> CheckpointMetadata:
    """Checkpoint 7 of one operator; every subtask's store has one file."""
    stores = []
    for subtask in range(parallelism) if subtasks is None else subtasks:
        groups = key_groups(subtask, parallelism, 128)
        state = states[subtask] if states else None
        stores.append(
            StoreSnapshot(
                subtask=subtask,
                backend="hashmap",
                version=f"70-{subtask}",
                key_groups=(groups.start, groups.stop - 1) if keyed else None,
                files={"state": inline(b"store %d" % subtask)},
                full_size=7,
                uploaded_size=7,
                operator_state=None if state is None else inline(state.encode()),
            )
        )
    operator = OperatorSnapshot(
        uid=uid,
        name="Count",
        parallelism=parallelism,
        max_parallelism=128,
        states=[],
        key=None,
        subtasks=stores,
    )
    return msgspec.structs.replace(
        checkpoint(7), operators=[msgspec.structs.replace(operator, **changes)]
    )


def plan_of(
    taken: CheckpointMetadata,
    plan: JobPlan,
    tmp_path: Path,
    target: RestoreTarget = TARGET,
    local_copies: dict[tuple[str, int], str] | None = None,
    **options: Any,
) -> list[Restore]:
    files = FileSystemFiles(str(tmp_path))
    return list(assign_state(taken, plan, target, files, local_copies or {}, **options))


def contents(restore: Restore) -> list[bytes]:
    return [copy.files["state"].data for copy in restore.copies]  # type: ignore[union-attr]


def elements(*values: bytes) -> OperatorStateSnapshot:
    return OperatorStateSnapshot([NamedState("n", "split", [], list(values))])


def test_with_as_many_subtasks_each_takes_its_predecessor_over_whole(tmp_path: Path) -> None:
    first, second = plan_of(metadata(), counting(2), tmp_path)
    assert (first.uid, first.subtask, first.whole) == ("count", 0, True)
    assert (first.key_groups, second.key_groups) == (range(64), range(64, 128))
    assert (contents(first), contents(second)) == ([b"store 0"], [b"store 1"])
    assert first.version == second.version == "restored-7-2-1-abc"
    assert first.target is TARGET
    assert first.operator_state is None


def test_a_subtask_that_had_no_store_gets_none(tmp_path: Path) -> None:
    [only] = plan_of(metadata(subtasks=range(1, 2)), counting(2), tmp_path)
    assert only.subtask == 1


@pytest.mark.parametrize(
    ("old", "new", "taken"),
    [
        (1, 2, [[0], [0]]),
        (2, 1, [[0, 1]]),
        (2, 3, [[0], [0, 1], [1]]),
        (3, 2, [[0, 1], [1, 2]]),
        (2, 4, [[0], [0], [1], [1]]),
        (4, 2, [[0, 1], [2, 3]]),
    ],
)
def test_with_another_number_each_takes_from_those_that_hold_its_key_groups(
    tmp_path: Path, old: int, new: int, taken: list[list[int]]
) -> None:
    found = plan_of(metadata(parallelism=old), counting(new), tmp_path)
    assert [contents(one) for one in found] == [[b"store %d" % i for i in of] for of in taken]
    assert not any(one.whole for one in found)
    assert [group for one in found for group in one.key_groups] == list(range(128))


def test_local_copies_are_offered_for_the_stores_they_are_of(tmp_path: Path) -> None:
    local = {("count", 1): "/local/snapshot"}
    first, second = plan_of(metadata(), counting(2), tmp_path, local_copies=local)
    assert [copy.local for copy in (*first.copies, *second.copies)] == [None, "/local/snapshot"]
    [both] = plan_of(metadata(), counting(1), tmp_path, local_copies=local)
    assert [(copy.local, copy.version) for copy in both.copies] == [
        (None, "70-0"),
        ("/local/snapshot", "70-1"),
    ]


def test_operator_state_is_dealt_out_and_its_stores_are_not_read(tmp_path: Path) -> None:
    taken = metadata("keep", keyed=False, states=[elements(b"a", b"b"), elements(b"c")])
    found = plan_of(taken, keeping(3), tmp_path)
    shares = [OperatorStateSnapshot.decode(one.operator_state or b"") for one in found]
    assert [share.states[0].elements for share in shares] == [[b"a"], [b"b"], [b"c"]]
    assert [one.copies for one in found] == [()] * 3
    assert not any(one.whole for one in found)


def test_operator_state_stays_with_its_subtask_if_their_number_does(tmp_path: Path) -> None:
    taken = metadata("keep", keyed=False, states=[elements(b"a", b"b"), elements(b"c")])
    found = plan_of(taken, keeping(2), tmp_path)
    shares = [OperatorStateSnapshot.decode(one.operator_state or b"") for one in found]
    assert [share.states[0].elements for share in shares] == [[b"a", b"b"], [b"c"]]
    assert all(one.whole for one in found)


def test_a_subtask_without_a_store_gets_its_share_of_a_union(tmp_path: Path) -> None:
    union = OperatorStateSnapshot([NamedState("n", "union", [], [b"a"])])
    taken = metadata("keep", subtasks=range(1), keyed=False, states=[union, None])
    first, second = plan_of(taken, keeping(2), tmp_path)
    assert (first.whole, second.whole) == (True, False)
    assert second.copies == ()
    assert OperatorStateSnapshot.decode(second.operator_state or b"") == union


def test_an_operator_that_is_new_has_nothing_to_restore(tmp_path: Path) -> None:
    taken = msgspec.structs.replace(metadata(), operators=[])
    assert plan_of(taken, counting(2), tmp_path) == []


def test_state_that_no_operator_claims_is_refused_unless_it_may_be_dropped(tmp_path: Path) -> None:
    taken = metadata("counts")
    with pytest.raises(RestoreError, match=r"no operator for that of 'Count' \(uid 'counts'\)"):
        plan_of(taken, counting(2), tmp_path)
    assert plan_of(taken, counting(2), tmp_path, ignore_unclaimed=True) == []


def test_what_is_not_claimed_is_named_with_its_place_in_the_program(tmp_path: Path) -> None:
    taken = metadata("638231a1", made_at="/app/jobs.py:12")
    [source] = taken.sources
    named = msgspec.structs.replace(source, uid="0f3a", name="Orders", made_at="/app/jobs.py:9")
    with pytest.raises(RestoreError, match=r"'Count' \(uid '638231a1', made at /app/jobs\.py:12\)"):
        plan_of(taken, counting(2), tmp_path)
    moved = msgspec.structs.replace(metadata(), sources=[named])
    with pytest.raises(RestoreError, match=r"'Orders' \(uid '0f3a', made at /app/jobs\.py:9\)"):
        plan_of(moved, counting(2), tmp_path)


def test_an_operator_without_stores_is_not_missed(tmp_path: Path) -> None:
    assert plan_of(metadata("counts", subtasks=range(0)), counting(2), tmp_path) == []


def test_another_max_parallelism_is_refused_with_what_to_set(tmp_path: Path) -> None:
    said = r"'Count' \(uid 'count'\) has 256 and .* with 128; set_max_parallelism\(128\)"
    with pytest.raises(RestoreError, match=said):
        plan_of(metadata(), counting(2, 256), tmp_path)


def test_another_backend_reads_what_the_first_has_written_and_takes_no_files_over(
    tmp_path: Path,
) -> None:
    target = replace(TARGET, backend=EmbeddedRocksDBStateBackend())
    found = plan_of(metadata(), counting(2), tmp_path, target)
    assert [(one.kind, one.whole) for one in found] == [("hashmap", False)] * 2
    found = plan_of(metadata(), counting(2), tmp_path)
    assert [(one.kind, one.whole) for one in found] == [("hashmap", True)] * 2


def test_a_source_whose_position_nobody_claims_is_refused(tmp_path: Path) -> None:
    program = Program(parallelism=2)
    program.source(ROWS).uid("renamed").key_by("k").process(Count(), ROWS).uid("count")
    plan = program.compile()
    with pytest.raises(RestoreError, match=r"'events'.*old uids back"):
        plan_of(metadata(), plan, tmp_path)
    assert plan_of(metadata(), plan, tmp_path, ignore_unclaimed=True)
