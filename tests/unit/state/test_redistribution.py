"""How operator state is dealt out to new subtasks: Flink's rules, by example."""

from __future__ import annotations

import pytest

from holdfast.errors import StateError
from holdfast.state.operator.redistribution import (
    Mode,
    NamedState,
    OperatorStateSnapshot,
    redistribute,
)

MAX_PARALLELISM = 8


def listed(name: str, mode: Mode, *elements: str) -> NamedState:
    """A list state with these elements."""
    return NamedState(name, mode, ["str"], [element.encode() for element in elements])


def holding(*states: NamedState) -> OperatorStateSnapshot:
    """A subtask's snapshot with these states."""
    return OperatorStateSnapshot(list(states))


def dealt(snapshots: list[OperatorStateSnapshot | None], parallelism: int) -> list[list[list[str]]]:
    """For every new subtask: the elements of its states."""
    return [
        [[element.decode() for element in state.elements] for state in snapshot.states]
        for snapshot in redistribute(snapshots, parallelism, MAX_PARALLELISM)
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["abc", "de"], ["ab", "cd", "e"]),
        (["xy"], ["x", "y"]),
        (["1", "2"], ["1", "2", "", "", ""]),
        (["1234", "5678", "9A"], ["12345", "6789A"]),
        (["1234", "5678", "9A"], ["123", "456", "78", "9A"]),
        (["", ""], [""]),
        (["abc"], ["abc"]),
    ],
)
def test_split_elements_are_dealt_out_evenly_and_in_order(old: list[str], new: list[str]) -> None:
    snapshots: list[OperatorStateSnapshot | None] = [
        holding(listed("s", "split", *elements)) for elements in old
    ]
    assert dealt(snapshots, len(new)) == [[list(elements)] for elements in new]


def test_the_extra_elements_of_the_next_state_go_to_the_next_subtasks() -> None:
    old: list[OperatorStateSnapshot | None] = [
        holding(listed("one", "split", "a", "b", "c"), listed("two", "split", "1")),
        holding(listed("one", "split", "d", "e"), listed("two", "split", "2")),
    ]
    assert dealt(old, 3) == [[["a", "b"], ["2"]], [["c", "d"], []], [["e"], ["1"]]]


def test_with_as_many_subtasks_split_state_stays_where_it_is() -> None:
    old: list[OperatorStateSnapshot | None] = [
        holding(listed("s", "split", "a", "b", "c")),
        None,
        holding(listed("s", "split")),
    ]
    assert dealt(old, 3) == [[["a", "b", "c"]], [[]], [[]]]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_union_elements_go_to_every_subtask_in_the_order_of_the_old_ones(parallelism: int) -> None:
    old = [holding(listed("u", "union", "a", "b")), None, holding(listed("u", "union", "c"))]
    assert dealt(old, parallelism) == [[["a", "b", "c"]]] * parallelism


def test_every_new_subtask_gets_one_of_the_reported_copies_of_a_broadcast_map() -> None:
    copies = [
        holding(NamedState("b", "broadcast", [], [], [(b"\x01k", b"\x01%d" % i)])) for i in range(3)
    ]
    old = [copies[0], None, copies[1], copies[2]]
    for parallelism in (1, 2, 4, 7):
        new = redistribute(old, parallelism, MAX_PARALLELISM)
        assert new == [copies[i % 3] for i in range(parallelism)]
    assert redistribute([*copies], 3, MAX_PARALLELISM) == copies


def test_raw_partitions_are_dealt_out_like_a_list_and_stay_whole() -> None:
    old: list[OperatorStateSnapshot | None] = [
        OperatorStateSnapshot([listed("s", "split", "x")], [b"a", b"b", b"c"]),
        OperatorStateSnapshot([], [b"d", b"e"]),
    ]
    new = redistribute(old, 3, MAX_PARALLELISM)
    assert [snapshot.raw_partitions for snapshot in new] == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    same = redistribute(old, 2, MAX_PARALLELISM)
    assert [snapshot.raw_partitions for snapshot in same] == [[b"a", b"b", b"c"], [b"d", b"e"]]


def test_raw_keyed_state_follows_its_key_groups() -> None:
    old = [OperatorStateSnapshot([], [], {g: b"%d" % g for g in (0, 3)}), None]
    old += [OperatorStateSnapshot([], [], {g: b"%d" % g for g in (6, 7)})]
    new = redistribute(old, 2, MAX_PARALLELISM)
    assert [snapshot.raw_key_groups for snapshot in new] == [
        {0: b"0", 3: b"3"},
        {6: b"6", 7: b"7"},
    ]
    everything = redistribute(old, 1, MAX_PARALLELISM)[0].raw_key_groups
    assert everything == {0: b"0", 3: b"3", 6: b"6", 7: b"7"}


def test_names_keep_the_order_of_registration_over_all_subtasks() -> None:
    old: list[OperatorStateSnapshot | None] = [
        None,
        holding(listed("z", "split"), listed("a", "union")),
        holding(listed("m", "split"), listed("a", "union")),
    ]
    for snapshot in redistribute(old, 2, MAX_PARALLELISM):
        assert [state.name for state in snapshot.states] == ["z", "a", "m"]


def test_of_nothing_everyone_gets_nothing() -> None:
    assert redistribute([], 2, MAX_PARALLELISM) == [OperatorStateSnapshot()] * 2
    assert redistribute([None, None], 1, MAX_PARALLELISM) == [OperatorStateSnapshot()]


def test_subtasks_that_disagree_about_a_state_are_refused() -> None:
    one = holding(listed("s", "split"))
    for other, message in (
        (listed("s", "union"), "its mode is split on subtask 0 and union on subtask 2"),
        (NamedState("s", "split", ["int"]), "its schema is"),
    ):
        with pytest.raises(StateError, match=message):
            redistribute([one, None, holding(other)], 2, MAX_PARALLELISM)


def test_a_key_group_of_two_subtasks_is_refused() -> None:
    twice = OperatorStateSnapshot([], [], {4: b"x"})
    with pytest.raises(StateError, match="key group 4"):
        redistribute([twice, twice], 3, MAX_PARALLELISM)
