"""The judgement of chaos runs over what a process takes of the machine."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.growth import MIB, Sample, Tolerance, table, thirds, verdicts
from tests.chaos.sampler import TOLERANCES, contents, process_figures

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = {"memory": Tolerance(0.05, 10.0, warm_up=60)}


def life(values: list[float], every: float = 5.0, name: str = "driver 1") -> list[Sample]:
    return [Sample(number * every, name, "memory", value) for number, value in enumerate(values)]


def grows(values: list[float]) -> bool:
    (verdict,) = verdicts(life(values), TOLERANCE)
    return verdict.grows


def test_a_figure_that_stays_does_not_grow() -> None:
    assert not grows([1000.0] * 200)


def test_a_figure_that_rises_all_the_time_grows() -> None:
    assert grows([1000.0 + 2 * number for number in range(200)])


def test_what_is_taken_while_warming_up_does_not_count() -> None:
    assert not grows([10.0 * number for number in range(12)] + [120.0] * 100)
    assert not grows([*range(60), *[60.0] * 140])


def test_a_step_that_stays_grows_if_it_comes_late_and_is_more_than_tolerated() -> None:
    assert grows([1000.0] * 130 + [1061.0] * 70)
    assert not grows([1000.0] * 130 + [1059.0] * 70)


def test_jumps_that_pass_do_not_count() -> None:
    chance = random.Random(1)
    assert not grows([5000.0 if chance.random() < 0.3 else 1000.0 for _ in range(400)])


def test_less_than_before_does_not_grow() -> None:
    assert not grows([1000.0 - number for number in range(200)])


def test_a_life_that_was_short_is_not_judged() -> None:
    assert verdicts(life([1.0, 1000.0] * 20), TOLERANCE, shortest=150) == []
    assert verdicts(life([1.0] * 20, every=60), TOLERANCE, shortest=150) != []
    # Long enough, but looked at too rarely to tell.
    assert verdicts(life([1.0] * 5, every=600), TOLERANCE, shortest=150) == []


def test_every_life_is_judged_by_itself() -> None:
    samples = life([1000.0] * 100, name="worker 1") + life([9000.0] * 100, name="worker 2")
    random.Random(1).shuffle(samples)
    assert [(found.life, found.grows) for found in verdicts(samples, TOLERANCE)] == [
        ("worker 1", False),
        ("worker 2", False),
    ]


def test_thirds_are_thirds_of_the_time_not_of_the_samples() -> None:
    early = [Sample(at / 10, "x", "memory", 1.0) for at in range(100)]
    late = [Sample(at, "x", "memory", value) for at, value in ((15.0, 2.0), (30.0, 3.0))]
    assert thirds([*early, *late]) == (1.0, 2.0, 3.0)


def test_a_verdict_is_told_in_its_unit() -> None:
    tolerance = Tolerance(0.0, 0.0, warm_up=0, unit=MIB, name="MiB")
    (verdict,) = verdicts(life([1024.0 * MIB] * 100), {"memory": tolerance})
    assert verdict.cells == ("driver 1", "memory", "8.2", *["1,024 MiB"] * 3, "ok")


def test_cells_of_a_table_stand_below_each_other() -> None:
    assert table([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]


def test_what_this_process_takes_is_seen(tmp_path: Path) -> None:
    before = process_figures(os.getpid())
    assert before is not None
    with (tmp_path / "one").open("w"), (tmp_path / "two").open("w"):
        after = process_figures(os.getpid())
    assert after is not None
    assert after["open files"] == before["open files"] + 2
    assert after["memory"] > MIB
    assert after["threads"] >= 1
    assert {*before} <= {*TOLERANCES}


def test_a_process_that_is_gone_has_no_figures() -> None:
    assert process_figures(2**30) is None


def test_what_is_in_a_directory_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "file").write_bytes(b"123")
    assert contents(tmp_path) == {"bytes": 8, "files": 2, "directories": 2}
    assert contents(tmp_path / "none") == {"bytes": 0, "files": 0, "directories": 0}


@pytest.mark.parametrize(("figure", "usual"), [("memory", 180), ("Java heap", 80)])
def test_a_leak_of_ten_megabytes_a_minute_shows_within_twelve(figure: str, usual: int) -> None:
    leak = [Sample(at, "driver", figure, (usual + at / 6) * MIB) for at in range(0, 720, 3)]
    (verdict,) = verdicts(leak, TOLERANCES)
    assert verdict.grows
