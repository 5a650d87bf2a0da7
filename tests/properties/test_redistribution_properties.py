"""Redistribution loses nothing, doubles nothing, and is fair, whatever the numbers."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.key_groups import key_groups
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot, redistribute
from tests.support.properties import searched

MAX_PARALLELISM = 64
PARALLELISMS = st.integers(1, 12)
NAMES = [("split", "s1"), ("union", "u"), ("split", "s2"), ("broadcast", "b"), ("split", "s3")]


@st.composite
def old_subtasks(draw: st.DrawFn) -> list[OperatorStateSnapshot | None]:
    """Subtasks with states of all modes; each element says where it comes from."""
    parallelism = draw(PARALLELISMS)
    snapshots: list[OperatorStateSnapshot | None] = []
    for subtask in range(parallelism):
        states = []
        for mode, name in NAMES:
            size = draw(st.none() | st.integers(0, 7))
            if size is None:
                continue
            parts = [f"{name}-{subtask}-{i}".encode() for i in range(size)]
            if mode == "broadcast":
                states.append(NamedState(name, "broadcast", [], [], [(p, p) for p in parts]))
            else:
                states.append(NamedState(name, mode, [], parts))  # type: ignore[arg-type]
        raw = [b"%d-%d" % (subtask, i) for i in range(draw(st.integers(0, 4)))]
        owned = list(key_groups(subtask, parallelism, MAX_PARALLELISM))
        groups = draw(st.sets(st.sampled_from(owned)))
        missing = draw(st.sampled_from([False, False, False, True]))
        snapshots.append(
            None if missing else OperatorStateSnapshot(states, raw, {g: b"%d" % g for g in groups})
        )
    return snapshots


def elements_of(
    snapshots: list[OperatorStateSnapshot | None] | list[OperatorStateSnapshot], name: str
) -> list[list[bytes]]:
    """Elements of a state, by subtask."""
    return [
        [e for s in ([] if o is None else o.states) if s.name == name for e in s.elements]
        for o in snapshots
    ]


@searched(25, 100)
def test_split_elements_are_neither_lost_nor_doubled_and_keep_their_order(examples):
    @settings(max_examples=examples)
    @given(old_subtasks(), PARALLELISMS)
    def check(old, parallelism):
        new = redistribute(old, parallelism, MAX_PARALLELISM)
        assert len(new) == parallelism
        for mode, name in NAMES:
            if mode == "split":
                before, after = elements_of(old, name), elements_of(new, name)
                assert Counter(chain(*after)) == Counter(chain(*before))
                for share in after:
                    order = list(chain(*before))
                    places = [order.index(element) for element in share]
                    assert (
                        places == list(range(places[0], places[0] + len(places)))
                        if places
                        else True
                    )
                if len(old) == parallelism:
                    assert after == before
        raw = Counter(chain.from_iterable(o.raw_partitions for o in old if o is not None))
        assert Counter(chain.from_iterable(o.raw_partitions for o in new)) == raw

    check()


@searched(25, 100)
def test_after_rescaling_no_subtask_has_two_elements_more_than_another(examples):
    @settings(max_examples=examples)
    @given(old_subtasks(), PARALLELISMS)
    def check(old, parallelism):
        if len(old) == parallelism:
            return
        new = redistribute(old, parallelism, MAX_PARALLELISM)
        loads = [sum(len(s.elements) for s in o.states if s.mode == "split") for o in new]
        assert max(loads) - min(loads) <= 1
        raw = [len(o.raw_partitions) for o in new]
        assert max(raw) - min(raw) <= 1

    check()


@searched(25, 100)
def test_union_state_is_complete_everywhere_and_broadcast_state_is_one_of_the_copies(examples):
    @settings(max_examples=examples)
    @given(old_subtasks(), PARALLELISMS)
    def check(old, parallelism):
        new = redistribute(old, parallelism, MAX_PARALLELISM)
        assert elements_of(new, "u") == [list(chain(*elements_of(old, "u")))] * parallelism
        copies = [s for o in old if o is not None for s in o.states if s.name == "b"]
        found = [s for o in new for s in o.states if s.name == "b"]
        assert found == [copies[i % len(copies)] for i in range(parallelism) if copies]

    check()


@searched(25, 100)
def test_raw_keyed_state_is_with_the_owner_of_its_key_group(examples):
    @settings(max_examples=examples)
    @given(old_subtasks(), PARALLELISMS)
    def check(old, parallelism):
        new = redistribute(old, parallelism, MAX_PARALLELISM)
        everything = dict(chain.from_iterable(o.raw_key_groups.items() for o in old if o))
        for subtask, snapshot in enumerate(new):
            owned = key_groups(subtask, parallelism, MAX_PARALLELISM)
            expected = {group: data for group, data in everything.items() if group in owned}
            assert snapshot.raw_key_groups == expected

    check()


@searched(25, 100)
def test_a_snapshot_survives_its_file(examples):
    @settings(max_examples=examples)
    @given(old_subtasks())
    def check(old):
        for snapshot in old:
            if snapshot is not None:
                assert OperatorStateSnapshot.decode(snapshot.encode()) == snapshot

    check()
