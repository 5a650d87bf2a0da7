"""Files that several checkpoints share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.files.job_files import SharedFiles
from holdfast.errors import CheckpointError
from tests.support.driver_memory import held

A, B, C = "shared/1-a", "shared/1-b", "shared/1-c"


def test_a_file_is_unused_when_its_last_checkpoint_goes() -> None:
    shared = SharedFiles()
    shared.register(1, [A, B])
    shared.register(2, [B, "shared/2-c"])
    assert shared.unregister(1) == {A}
    assert shared.in_use == {B, "shared/2-c"}
    assert shared.unregister(2) == {B, "shared/2-c"}
    assert shared.in_use == set()


def test_a_checkpoint_is_forgotten_once() -> None:
    shared = SharedFiles()
    shared.register(1, [A])
    assert shared.unregister(1) == {A}
    assert shared.unregister(1) == set()
    assert shared.unregister(7) == set()


def test_a_checkpoint_under_way_keeps_what_it_builds_upon() -> None:
    shared = SharedFiles()
    shared.register(1, [A, B])
    shared.register(3, [A, B])
    shared.register(2, [B])
    assert shared.unregister(1) == set()
    shared.register(3, ["shared/3-c"])
    assert shared.unregister(2) == set()
    assert shared.in_use == {A, B, "shared/3-c"}


def test_a_discarded_file_never_comes_back() -> None:
    shared = SharedFiles()
    shared.register(1, [A])
    shared.unregister(1)
    with pytest.raises(CheckpointError, match="uses shared/1-a, which no other checkpoint"):
        shared.register(2, ["shared/2-b", A])
    assert shared.in_use == set()


def test_files_of_a_checkpoint_that_was_found_in_storage_may_be_anyones() -> None:
    shared = SharedFiles()
    shared.adopt(7, [A, "shared/7-b"])
    shared.register(9, [A])
    assert shared.unregister(7) == {"shared/7-b"}
    assert shared.unregister(9) == {A}


@given(st.lists(st.tuples(st.integers(1, 6), st.frozensets(st.integers(0, 9)), st.booleans())))
def test_what_is_unused_is_what_a_naive_count_says(
    events: list[tuple[int, frozenset[int], bool]],
) -> None:
    shared = SharedFiles()
    naive: dict[int, set[str]] = {}
    for checkpoint_id, numbers, leaves in events:
        if leaves:
            lost = naive.pop(checkpoint_id, set()) - set[str]().union(*naive.values())
            assert shared.unregister(checkpoint_id) == lost
        else:
            paths = {f"shared/1-{number}" for number in numbers}
            shared.adopt(checkpoint_id, paths)
            naive.setdefault(checkpoint_id, set()).update(paths)
        assert shared.in_use == set[str]().union(*naive.values())


def test_a_complete_checkpoint_lets_go_of_what_it_has_not_built_upon() -> None:
    shared = SharedFiles()
    shared.register(1, [A, B, C])
    shared.register(2, [A, B, C])
    assert shared.unregister(1) == set()
    shared.register(3, [C])
    assert shared.settle(2, [A, "shared/2-d"]) == {B}
    assert shared.in_use == {A, C, "shared/2-d"}
    assert shared.unregister(2) == {A, "shared/2-d"}


def test_nothing_is_remembered_of_files_that_have_gone() -> None:
    shared = SharedFiles()

    def replace(checkpoint_id: int) -> dict[str, int]:
        shared.settle(checkpoint_id, [f"shared/{checkpoint_id}-a"])
        shared.unregister(checkpoint_id - 1)
        return held(shared)

    first = replace(1)
    assert [replace(number) for number in range(2, 50)][-1] == first
