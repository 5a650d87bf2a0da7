"""Uploads and restores leave room for the epochs: one task per executor at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spark.pinned_calls import PinnedCalls, _call_for_rows


class Anchors:
    """A cluster, as far as the order of calls goes."""

    local = False


def calls_with(homes: dict[int, str]) -> PinnedCalls:
    nowhere: Any = None
    anchors: Any = Anchors()
    calls = PinnedCalls(nowhere, anchors)
    for subtask, executor in homes.items():
        calls.learn(subtask, executor)
    return calls


def test_no_two_subtasks_of_a_wave_share_an_executor() -> None:
    calls = calls_with({0: "a", 1: "a", 2: "b", 3: "b"})
    waves = list(calls._waves([(subtask, 4, subtask) for subtask in range(4)]))
    assert waves == [(4, [(0, 0), (2, 2)]), (4, [(1, 1), (3, 3)])]


def test_all_stores_of_a_subtask_go_in_one_wave() -> None:
    calls = calls_with({0: "a", 1: "b"})
    items = [(0, 2, "first"), (0, 2, "second"), (1, 2, "third")]
    assert list(calls._waves(items)) == [(2, [(0, "first"), (0, "second"), (1, "third")])]


@given(
    homes=st.dictionaries(st.integers(0, 7), st.sampled_from("abc")),
    items=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([4, 8]), st.integers())),
)
def test_every_item_is_in_exactly_one_wave(
    homes: dict[int, str], items: list[tuple[int, int, int]]
) -> None:
    calls = calls_with(homes)
    waves = list(calls._waves(items))
    found = [(subtask, tasks, item) for tasks, wave in waves for subtask, item in wave]
    assert sorted(found) == sorted(items)
    for _, wave in waves:
        at: dict[str, set[int]] = {}
        for subtask, _ in wave:
            at.setdefault(homes.get(subtask, str(subtask)), set()).add(subtask)
        assert all(len(subtasks) == 1 for subtasks in at.values())


def test_a_task_makes_the_calls_of_its_own_anchors_only() -> None:
    items = {0: ["a"], 1: ["b", "c"]}
    assert _call_for_rows(str.upper, items, [(1,)]) == ["B", "C"]
    assert _call_for_rows(str.upper, items, [(2,)]) == []


def test_on_one_machine_an_error_of_a_call_comes_through() -> None:
    class Here:
        local = True

    here: Any = Here()
    nowhere: Any = None
    calls = PinnedCalls(nowhere, here)
    assert sorted(calls.map(str.upper, [(0, 1, "a"), (0, 1, "b")], "group")) == ["A", "B"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(calls.map(int, [(0, 1, "1"), (0, 1, "x")], "group"))
