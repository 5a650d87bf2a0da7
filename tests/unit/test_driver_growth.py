"""What the driver holds follows the checkpoints that are there, not those that ever were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.checkpoint.completed import load
from holdfast.errors import CheckpointError
from holdfast.spark import publication
from tests.unit.driver_memory import grown, held
from tests.unit.test_checkpointer import Bench, make

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make"]

HISTORY = 12
"""Checkpoints after which the statistics' history is full."""


def sizes(bench: Bench) -> dict[str, int]:
    return held(bench.checkpointer, bench.publication)


def life(bench: Bench) -> None:
    """Some checkpoints that complete, one that fails in its upload and one in its epoch."""
    bench.epoch(due=False)
    bench.epoch()
    bench.epoch()
    number = bench.checkpointer._coordinator.next_id
    bench.calls.fail(number, CheckpointError("no room"))
    bench.epoch()
    bench.checkpointer.missed(bench.order())
    bench.epoch()
    bench.order(due=False)


@pytest.mark.parametrize("backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()])
def test_nothing_on_the_driver_grows_with_the_checkpoints_of_a_job(
    make: Callable[..., Bench], backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "PUBLISHED_KNOWN", HISTORY)
    bench = make(backend=backend, incremental=True, tolerable_failures=1)
    for _ in range(HISTORY // 3):
        life(bench)
    before = sizes(bench)
    for _ in range(10):
        life(bench)
    assert bench.failures == []
    assert grown(before, sizes(bench)) == {}


def test_a_checkpoint_that_turned_up_is_built_upon_and_goes_in_its_turn(
    make: Callable[..., Bench],
) -> None:
    bench = make(backend=EmbeddedRocksDBStateBackend(), incremental=True)
    bench.epoch()
    turned_up = load(bench.files, 1)
    bench.checkpointer.close()
    # Another driver has completed it after this one has looked for complete checkpoints.
    bench.checkpointer = bench.make(completed=[], next_id=4)
    bench.begin(turned_up, frozenset({("count", 0), ("count", 1)}))
    bench.epoch()
    assert bench.failures == []
    assert bench.complete == [4]
    for store in load(bench.files, 4).operators[0].subtasks:
        assert store.uploaded_size < store.full_size
