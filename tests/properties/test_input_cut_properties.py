"""Cuts at any moment, kills and rescales: every row once, in order, where it belongs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import MapFunction
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.runtime.channel_cut import SliceSizes
from holdfast.serde.keys import key_group_of
from holdfast.state.key_groups import subtask_of
from holdfast.storage.file_system import FileSystemFiles
from holdfast.testing.clock import ManualClock
from tests.support.programs import Program
from tests.support.properties import searched
from tests.support.staged import StagedRun
from tests.support.task_epochs import ROWS

MAX_PARALLELISM = 8
SMALL = SliceSizes(first=1, largest=2)
CLOCK = ManualClock()
SEEN: list[tuple[str, int, int, str, int]] = []
"""Step, subtask, parallelism, key and number of everything processed, in order."""


class Step(MapFunction):
    """Takes a millisecond for every element; what it has seen is its state."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.parallelism = ctx.get_number_of_parallel_subtasks()

    def map(self, value: Any) -> Any:
        CLOCK.advance(1)
        SEEN.append((self.name, self.subtask, self.parallelism, value.k, value.n))
        return value


def program(parallelism: int) -> Program:
    """Two steps by different keys, one of them a function; the second takes a side road too."""
    made = Program(parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
    source = made.source(ROWS)
    first = source.key_by("k").map(Step("first"), ROWS).uid("first")
    united = first.union(source).key_by(lambda e: f"{e.n % 3}")
    made.collect(united.map(Step("second"), ROWS).uid("second"))
    made.collect(first.rebalance().map(Step("third"), ROWS).uid("third"))
    return made


EPOCH = st.tuples(st.just("epoch"), st.integers(3, 15), st.none() | st.integers(0, 20))
ACTIONS = st.lists(
    EPOCH
    | st.tuples(st.just("checkpoint"), EPOCH)
    | st.tuples(st.just("kill"), EPOCH)
    | st.tuples(st.just("rescale"), EPOCH, st.integers(1, 5)),
    min_size=2,
    max_size=8,
)


class Job:
    """The program on some number of subtasks, and the checkpoint it goes back to."""

    def __init__(self, root: str, source: list[tuple[str, int]]) -> None:
        self.root, self.source = Path(root), source
        self.position = 0
        self.checkpoint: tuple[int, list[Any], tuple[Any, ...]] = (0, [], ())
        self.job_attempts = 0
        self.restart(2)

    def restart(self, parallelism: int) -> None:
        """Go back to the checkpoint."""
        self.job_attempts += 1
        self.parallelism = parallelism
        staging = FileStaging(FileSystemFiles(str(self.root)), 1_000_000)
        plan = program(parallelism).compile()
        attempt = f"1-{self.job_attempts}"
        self.run = StagedRun(plan, self.root, staging, CLOCK, attempt, SMALL)
        self.position, seen, self.run.channel_rows = self.checkpoint
        SEEN[:] = seen

    def epoch(self, count: int, cut_after: int | None) -> None:
        feed = self.source[self.position : self.position + count]
        self.position += len(feed)
        before = len(SEEN)
        waiting = bool(self.run.channel_rows)
        cut_at = None if cut_after is None else CLOCK.now_ms() + cut_after
        self.run.run(feed, cut_at=cut_at, least_work_ms=3)
        if cut_after is None:
            assert self.run.channel_rows == ()
        assert not waiting or len(SEEN) > before

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("epoch", count, cut_after):
                self.epoch(count, cut_after)
            case ("checkpoint", epoch):
                self.act(epoch)
                self.checkpoint = (self.position, list(SEEN), self.run.channel_rows)
            case ("kill", epoch):
                self.act(epoch)
                self.restart(self.parallelism)
            case ("rescale", epoch, parallelism):
                self.act(("checkpoint", epoch))
                self.restart(parallelism)

    def drain(self) -> None:
        while self.position < len(self.source) or self.run.channel_rows:
            self.epoch(7, 5)


@searched(6, 40)
def test_every_row_is_processed_once_in_order_by_its_owner(examples):
    @settings(max_examples=examples)
    @given(st.lists(st.sampled_from("abcdefgh"), min_size=25, max_size=40), ACTIONS)
    def check(keys, actions):
        source = [(key, number) for number, key in enumerate(keys)]
        with TemporaryDirectory() as root:
            job = Job(root, source)
            for action in actions:
                job.act(action)
            job.drain()
        twice = sorted([*source, *source])
        for step, expected in {
            "first": sorted(source),
            "second": twice,
            "third": sorted(source),
        }.items():
            assert sorted((k, n) for name, _, _, k, n in SEEN if name == step) == expected
        check_owners()
        check_order()

    check()


def check_owners() -> None:
    for name, subtask, parallelism, key, number in SEEN:
        if name != "third":
            group = key_group_of(key if name == "first" else f"{number % 3}", MAX_PARALLELISM)
            assert subtask == subtask_of(group, parallelism, MAX_PARALLELISM)


def check_order() -> None:
    """Rows of one key come in order; behind another key, those that share both.

    The second step gets every row on two ways, each of which is in order.
    """
    paths: dict[tuple[str, str], list[int]] = defaultdict(list)
    met: dict[tuple[str, int], int] = defaultdict(int)
    for name, _, _, key, number in SEEN:
        if name == "first":
            paths[name, key].append(number)
        elif name == "second":
            met[key, number] += 1
            paths[f"second {met[key, number]}", f"{key} {number % 3}"].append(number)
    for path in paths.values():
        assert all(before < after for before, after in pairwise(path))
