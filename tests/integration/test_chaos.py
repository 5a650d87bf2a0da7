"""A job that is killed again and again ends with the state of one that never was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.compare import differences, expected_state
from tests.chaos.monkey import Monkey, Outcome, Plan
from tests.chaos.run import chaos

if TYPE_CHECKING:
    from pathlib import Path

DATA = 200


def said(outcome: Outcome, plan: Plan, directory: Path) -> str:
    faults = "\n".join(outcome.faults)
    return f"{faults}\nkept: {directory}; to do the same again: {plan.command}"


@pytest.mark.spark
def test_a_few_kills_of_driver_and_workers_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=4, kills=2, backend="rocksdb")
    outcome = Monkey(plan, tmp_path, print).run()
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert [kill.kind for kill in outcome.kills] == ["driver", "worker"]
    assert outcome.starts == 3
    # After the driver, after the worker, and from the checkpoint that stayed at the end.
    assert outcome.restarts >= 1
    assert outcome.restores >= 3


@pytest.mark.spark
def test_a_lost_executor_changes_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=1, kills=1, cluster=True, only="executor")
    outcome = Monkey(plan, tmp_path, print).run()
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert [kill.kind for kill in outcome.kills] == ["executor"]
    assert outcome.restarts >= 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_twenty_five_kills_change_nothing(tmp_path: Path, backend: str) -> None:
    plan = Plan(seed=25, kills=25, backend=backend)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert len(outcome.kills) == 25


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_kills_of_executors_too_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=9, kills=9, cluster=True)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert {kill.kind for kill in outcome.kills} == {"driver", "worker", "executor"}


def test_a_lost_event_shows_in_every_part_of_the_state_it_belongs_to() -> None:
    whole = expected_state(range(DATA), DATA)
    for lost in range(DATA):
        state = expected_state((n for n in range(DATA) if n != lost), DATA)
        parts = [fault.split()[0].rstrip(":") for fault in differences(whole, state)]
        assert sorted(parts) == ["key", "ledger", "team"]


def test_a_repeated_event_shows_in_every_part_of_the_state_it_belongs_to() -> None:
    whole = expected_state(range(DATA), DATA)
    for repeated in range(DATA):
        state = expected_state([*range(DATA), repeated], DATA)
        parts = [fault.split()[0].rstrip(":") for fault in differences(whole, state)]
        assert sorted(parts) == ["key", "ledger", "team"]


def test_a_loss_that_a_repetition_makes_up_for_in_the_count_shows() -> None:
    whole = expected_state(range(DATA), DATA)
    for lost in range(DATA - 1):
        numbers = [n for n in range(DATA) if n != lost]
        state = expected_state([*numbers, lost + 1], DATA)
        assert any(fault.startswith("ledger") for fault in differences(whole, state))


def test_the_order_of_events_does_not_show() -> None:
    whole = expected_state(range(DATA), DATA)
    assert differences(whole, expected_state(reversed(range(DATA)), DATA)) == []
