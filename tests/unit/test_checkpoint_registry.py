"""Files that several checkpoints share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.registry import SharedFiles
from holdfast.errors import CheckpointError


def test_a_file_is_unused_when_its_last_checkpoint_goes():
    shared = SharedFiles()
    shared.register(1, ["a", "b"])
    shared.register(2, ["b", "c"])
    assert shared.unregister(1) == {"a"}
    assert shared.in_use == {"b", "c"}
    assert shared.unregister(2) == {"b", "c"}
    assert shared.in_use == set()


def test_a_checkpoint_is_forgotten_once():
    shared = SharedFiles()
    shared.register(1, ["a"])
    assert shared.unregister(1) == {"a"}
    assert shared.unregister(1) == set()
    assert shared.unregister(7) == set()


def test_a_checkpoint_under_way_keeps_what_it_builds_upon():
    shared = SharedFiles()
    shared.register(1, ["a", "b"])
    shared.register(3, ["a", "b"])
    shared.register(2, ["b"])
    assert shared.unregister(1) == set()
    shared.register(3, ["c"])
    assert shared.unregister(2) == set()
    assert shared.in_use == {"a", "b", "c"}


def test_a_discarded_file_never_comes_back():
    shared = SharedFiles()
    shared.register(1, ["a"])
    shared.unregister(1)
    with pytest.raises(CheckpointError, match="checkpoint 2 uses a, which no checkpoint used"):
        shared.register(2, ["b", "a"])
    assert shared.in_use == set()


@given(st.lists(st.tuples(st.integers(1, 6), st.frozensets(st.integers(0, 9)), st.booleans())))
def test_what_is_unused_is_what_a_naive_count_says(events):
    shared = SharedFiles()
    naive: dict[int, set[str]] = {}
    gone: set[str] = set()
    for checkpoint_id, numbers, leaves in events:
        if leaves:
            lost = naive.pop(checkpoint_id, set()) - set().union(*naive.values())
            assert shared.unregister(checkpoint_id) == lost
            gone |= lost
        else:
            paths = {str(number) for number in numbers} - gone
            shared.register(checkpoint_id, paths)
            naive.setdefault(checkpoint_id, set()).update(paths)
        assert shared.in_use == set().union(*naive.values())


def test_a_complete_checkpoint_lets_go_of_what_it_has_not_built_upon():
    shared = SharedFiles()
    shared.register(1, ["a", "b", "c"])
    shared.register(2, ["a", "b", "c"])
    assert shared.unregister(1) == set()
    shared.register(3, ["c"])
    assert shared.settle(2, ["a", "d"]) == {"b"}
    assert shared.in_use == {"a", "c", "d"}
    assert shared.unregister(2) == {"a", "d"}
