"""Uploads and restores leave room for the epochs: one task per executor, some threads in it."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.transfer import _at_a_time
from holdfast.errors import CorruptCheckpointError
from holdfast.spark.placement.executor_calls import ExecutorCalls, _call_for_rows, _in_threads


class Anchors:
    """A cluster, as far as the order of calls goes."""

    local = False


def calls_with(homes: dict[tuple[int, int], str]) -> ExecutorCalls:
    nowhere: Any = None
    anchors: Any = Anchors()
    calls = ExecutorCalls(nowhere, anchors)
    for (tasks, subtask), executor in homes.items():
        calls.record_location(tasks, subtask, executor)
    return calls


def test_one_task_makes_all_calls_of_an_executor() -> None:
    calls = calls_with({(4, 0): "a", (4, 1): "b", (4, 2): "a", (4, 3): "b", (2, 0): "b"})
    items = [(subtask, 4, subtask) for subtask in range(4)] + [(0, 2, 9)]
    assert calls._places(items) == {4: {0: [0, 2], 1: [1, 3, 9]}}


def test_a_subtask_that_has_not_run_has_a_task_of_its_own() -> None:
    calls = calls_with({(4, 0): "a"})
    items = [(0, 4, "x"), (1, 4, "y"), (1, 4, "z"), (2, 4, "w"), (0, 8, "v")]
    assert calls._places(items) == {4: {0: ["x"], 1: ["y", "z"], 2: ["w"]}, 8: {0: ["v"]}}


places = st.tuples(st.sampled_from([4, 8]), st.integers(0, 7))


@given(
    homes=st.dictionaries(places, st.sampled_from("abc")),
    items=st.lists(st.tuples(places, st.integers())),
)
def test_every_call_is_made_once_and_where_its_subtask_is(
    homes: dict[tuple[int, int], str], items: list[tuple[tuple[int, int], int]]
) -> None:
    calls = calls_with(homes)
    found = calls._places([(at[1], at[0], (at, number)) for at, number in items])
    made = [item for by_subtask in found.values() for mine in by_subtask.values() for item in mine]
    assert sorted(made) == sorted(items)
    speakers = [(tasks, subtask) for tasks, mine in found.items() for subtask in mine]
    executors = [homes[at] for at in speakers if at in homes]
    assert len(executors) == len(set(executors))
    for tasks, by_subtask in found.items():
        for subtask, mine in by_subtask.items():
            here = homes.get((tasks, subtask), (tasks, subtask))
            assert {homes.get(at, at) for at, _ in mine} == {here}


def test_a_task_makes_the_calls_of_its_own_anchors_only() -> None:
    items = {0: pickle.dumps(["a"]), 1: pickle.dumps(["b", "c"])}
    assert _call_for_rows(str.upper, items, 2, [(1,)]) == ["B", "C"]
    assert _call_for_rows(str.upper, items, 2, [(2,)]) == []


def test_calls_are_made_at_the_same_time_within_the_limit() -> None:
    meeting = threading.Barrier(3, timeout=30)
    lock = threading.Lock()
    at_work = most = 0

    def meet(_: int) -> int:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        meeting.wait()
        with lock:
            at_work -= 1
        return _at_a_time.get()

    # None would get past the barrier if fewer than three were at work.
    assert list(_in_threads(meet, range(6), 3)) == [1] * 6
    assert most == 3


def test_few_calls_move_several_files_each() -> None:
    def files(_: int) -> int:
        return _at_a_time.get()

    assert list(_in_threads(files, [1], 4)) == [4]
    assert list(_in_threads(files, [1, 2], 4)) == [2, 2]
    assert list(_in_threads(files, [1, 2, 3], 4)) == [1, 1, 1]


def test_another_job_attempt_looks_for_its_subtasks_anew() -> None:
    calls = calls_with({(2, 0): "a", (2, 1): "a"})
    calls.forget()
    assert calls._places([(0, 2, "x"), (1, 2, "y")]) == {2: {0: ["x"], 1: ["y"]}}


def test_what_a_call_raises_on_an_executor_is_raised_here() -> None:
    """A damaged file, say, for which an older checkpoint is tried."""

    class Context:
        def setJobGroup(self, *_: Any, **__: Any) -> None:
            return

        def runJob(self, *_: Any) -> list[Any]:
            raise RuntimeError(
                "Job aborted: Traceback (most recent call last):\n  File ...\n"
                "holdfast.errors.CorruptCheckpointError: shared/1-aa has changed\n\n\tat org.x"
            )

    class Session:
        sparkContext = Context()

    class Anchored:
        local = False

        def anchor_of(self, tasks: int) -> Any:
            return type("Anchor", (), {"rdd": None})

    session: Any = Session()
    anchored: Any = Anchored()
    with pytest.raises(CorruptCheckpointError, match=r"^shared/1-aa has changed$"):
        list(ExecutorCalls(session, anchored).map(str, [(0, 1, "a")], "group"))


def test_on_one_machine_an_error_of_a_call_comes_through() -> None:
    class Here:
        local = True

    here: Any = Here()
    nowhere: Any = None
    calls = ExecutorCalls(nowhere, here)
    assert sorted(calls.map(str.upper, [(0, 1, "a"), (0, 1, "b")], "group")) == ["A", "B"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(calls.map(int, [(0, 1, "1"), (0, 1, "x")], "group"))


def test_in_a_session_that_has_ended_there_is_nothing_to_cancel() -> None:
    class Ended:
        @property
        def sparkContext(self) -> Any:
            raise ConnectionRefusedError("no Java process answers")

    session: Any = Ended()
    anchors: Any = Anchors()
    ExecutorCalls(session, anchors).cancel("holdfast-upload-1")
