"""A job that is disturbed again and again ends with the state of one that never was."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.compare import differences, expected_state
from tests.chaos.plan import Outcome, Plan
from tests.chaos.run import chaos, disturbed
from tests.chaos.savepoints import savepoints_in, wrong_savepoints
from tests.chaos.sinks import RESULTS, expected_rows, row_differences
from tests.chaos.strikes import (
    CLOCK,
    FATAL,
    GENTLE,
    HANDOVER,
    HANDOVERS,
    PUBLISHING,
    RECOVERING,
    RESTORING,
    mixed_up,
)

DATA = 200
GOLDEN = Path(__file__).parents[1] / "formats" / "savepoints"


def said(outcome: Outcome, plan: Plan, directory: Path) -> str:
    faults = "\n".join(outcome.faults)
    return f"{faults}\nkept: {directory}; to do the same again: {plan.command}"


@pytest.mark.versions
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_few_strikes_and_a_handover_change_neither_state_nor_output(tmp_path: Path) -> None:
    kills = (HANDOVER, "before-savepoint-metadata", "during-publish", RECOVERING, "worker")
    kinds = (*kills, CLOCK)
    plan = Plan(seed=181, kills=6, backend="hashmap", only=kinds)
    outcome = disturbed(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert tuple(kill.kind for kill in outcome.kills) == kinds
    assert outcome.starts == 6
    assert outcome.handovers == 1
    # From the savepoint, and from a checkpoint that stayed, after all kills of drivers and at the
    # end. Whether a worker that dies is at work, so that the job restarts, is a matter of luck.
    assert outcome.restores >= 5


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_minutes_in_which_everything_gives_way_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=31, minutes=4)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert {kill.kind for kill in outcome.kills} & {*GENTLE}
    assert len(outcome.kills) >= 5


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_job_whose_files_or_session_are_lost_goes_on_later(tmp_path: Path) -> None:
    plan = Plan(seed=32, kills=4, only=FATAL)
    outcome = disturbed(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert (outcome.refused, outcome.suspended) == (2, 2)


@pytest.mark.slow
@pytest.mark.spark
def test_a_lost_executor_changes_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=1, kills=1, cluster=True, only=("executor",))
    outcome = disturbed(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert [kill.kind for kill in outcome.kills] == ["executor"]
    assert outcome.restarts >= 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_twenty_five_kills_change_nothing(tmp_path: Path, backend: str) -> None:
    plan = Plan(seed=25, kills=25, backend=backend, database=backend == "rocksdb")
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert len(outcome.kills) == 25
    assert {kill.kind for kill in outcome.kills} >= {*PUBLISHING, RECOVERING, "driver", "worker"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_kills_of_executors_too_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=9, kills=9, cluster=True)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert {kill.kind for kill in outcome.kills} >= {"driver", "worker", "executor"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_kills_while_checkpoints_hold_input_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=10, kills=10, unaligned=True)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert any(kill.channel_state for kill in outcome.kills)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_handovers_to_other_jobs_among_kills_change_nothing(tmp_path: Path, backend: str) -> None:
    plan = Plan(seed=14, kills=14, backend=backend, savepoints=True)
    outcome = chaos(plan, tmp_path, print)
    assert not outcome.faults, said(outcome, plan, tmp_path)
    assert {kill.kind for kill in outcome.kills} >= {*HANDOVERS, RESTORING}
    assert outcome.handovers >= 2


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


def test_a_row_that_a_sink_has_lost_or_has_twice_shows() -> None:
    whole = expected_rows(DATA + 50, DATA)
    for sink in whole.lines:
        for number in (0, DATA - 1, DATA, DATA + 49):
            found = expected_rows(DATA + 50, DATA)
            row = next(row for row in found.lines[sink] if row[0] == number)
            found.lines[sink][row] = 0
            assert [fault.split()[2] for fault in row_differences(whole, found)] == ["lost"]
            found.lines[sink][row] = 2
            assert [fault.split()[2] for fault in row_differences(whole, found)] == ["has"]


def test_a_rank_that_a_sink_has_twice_shows() -> None:
    whole, found = expected_rows(DATA, DATA), expected_rows(DATA, DATA)
    found.ranks["files"][0, 1] = 2
    assert len(row_differences(whole, found)) == 1


def test_an_older_row_in_the_place_of_the_newest_shows() -> None:
    whole, found = expected_rows(DATA, DATA), expected_rows(DATA - 1, DATA - 1)
    assert any("newest" in fault for fault in row_differences(whole, found))


@pytest.mark.parametrize("options", [{}, {"cluster": True}, {"database": True}])
@pytest.mark.parametrize("seed", range(20))
def test_every_point_of_a_publication_comes_within_twelve_kills(
    seed: int, options: dict[str, Any]
) -> None:
    kinds = [strike.kind for strike in Plan(seed, 12, **options).strikes]
    assert {*kinds} >= {*PUBLISHING, RECOVERING}
    assert {*kinds} >= {"driver", "worker"} | ({"executor"} if options.get("cluster") else set())


def test_without_sinks_only_points_come_that_the_job_passes() -> None:
    strikes = mixed_up(["driver", "worker"], [RESULTS], 50, random.Random(1))
    points = {strike.kind for strike in strikes if strike.is_point}
    assert points == {"after-metadata", "before-publish", "after-publish", RECOVERING}
    assert {strike.uid for strike in strikes} == {None, RESULTS}


def test_a_plan_that_kills_in_a_recovery_which_never_comes_is_refused() -> None:
    with pytest.raises(ValueError, match="must come after"):
        Plan(1, 2, only=("worker", RECOVERING))


@pytest.mark.parametrize("seed", range(20))
def test_every_way_to_hand_over_comes_within_fourteen_kills(seed: int) -> None:
    kinds = [strike.kind for strike in Plan(seed, 14, savepoints=True).strikes]
    assert len(kinds) == 14
    assert {*kinds} >= {*HANDOVERS, RESTORING, "driver", "worker"}


def test_a_plan_that_kills_in_a_start_from_a_savepoint_which_never_comes_is_refused() -> None:
    with pytest.raises(ValueError, match="must come after a handover"):
        Plan(1, 2, only=("driver", RESTORING))
    with pytest.raises(ValueError, match="must come after a handover"):
        Plan(1, 2, only=("before-savepoint-part", RESTORING))
    Plan(1, 2, only=("before-savepoint-part", RESTORING), cluster=True)
    Plan(1, 2, only=(HANDOVER, RESTORING))


@pytest.fixture(params=["format-5-canonical-hashmap", "format-5-native-rocksdb"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / request.param, savepoints_in(tmp_path) / "whole")


def wrong(savepoint: Path, unreported: int = 0, unfinished: int = 0) -> list[str]:
    """What is wrong if the job has told of this savepoint."""
    return wrong_savepoints(savepoint.parent, [savepoint], unreported, unfinished)


def test_a_savepoint_that_lacks_a_file_or_has_another_or_a_changed_one_shows(whole: Path) -> None:
    assert wrong(whole) == []
    extra = whole / "extra"
    extra.touch()
    assert [fault.rpartition(": ")[2] for fault in wrong(whole)] == ["['extra']"]
    extra.unlink()
    for file in whole.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            assert wrong(whole)
            file.unlink()
            assert wrong(whole)
            file.write_bytes(content)
    assert wrong(whole) == []


def test_savepoints_that_nobody_has_told_of_are_counted(whole: Path) -> None:
    other = shutil.copytree(whole, whole.parent / "other")
    assert wrong(whole, unreported=1) == []
    assert wrong(whole) != []
    (other / "_metadata").unlink()
    assert wrong(whole, unfinished=1) == []
    assert wrong(whole) != []
    assert wrong(whole, unreported=1, unfinished=1) != []
