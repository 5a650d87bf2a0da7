"""Faults as data: they strike where and when they are told to, once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import _faults as faults
from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

KILLED = """
from holdfast import _faults as faults
faults.fault_point("before-commit", epoch=3)
print("alive", flush=True)
faults.fault_point("after-commit", epoch=3)
print("still alive", flush=True)
"""


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Adds a fault; returns the file that tells whether it has struck."""
    injected: list[dict[str, Any]] = []

    def add(point: str, action: str = "raise", **more: Any) -> Path:
        marker = tmp_path / f"marker-{len(injected)}"
        injected.append({"point": point, "action": action, "once": str(marker), **more})
        monkeypatch.setenv(faults.VARIABLE, json.dumps(injected))
        return marker

    return add


def test_nothing_happens_unless_it_is_asked_for() -> None:
    for point in faults.POINTS:
        faults.fault_point(point, epoch=1)


def test_a_fault_strikes_at_its_point_and_only_once(inject: Callable[..., Path]) -> None:
    marker = inject("after-commit")
    faults.fault_point("before-commit", epoch=1)
    assert not marker.exists()
    with pytest.raises(faults.InjectedFault, match="injected at after-commit"):
        faults.fault_point("after-commit", epoch=1)
    assert marker.exists()
    faults.fault_point("after-commit", epoch=1)


def test_a_fault_strikes_only_where_all_it_names_is_so(inject: Callable[..., Path]) -> None:
    inject("before-upload", uid="count", subtask=1)
    faults.fault_point("before-upload", uid="count", subtask=0, checkpoint=4)
    faults.fault_point("before-upload", uid="other", subtask=1, checkpoint=4)
    faults.fault_point("before-upload")
    with pytest.raises(faults.InjectedFault):
        faults.fault_point("before-upload", uid="count", subtask=1, checkpoint=4)


def test_each_fault_strikes_once_of_its_own(inject: Callable[..., Path]) -> None:
    inject("after-upload", checkpoint=1)
    inject("after-upload", checkpoint=2)
    for checkpoint in (2, 1):
        with pytest.raises(faults.InjectedFault):
            faults.fault_point("after-upload", checkpoint=checkpoint)
        faults.fault_point("after-upload", checkpoint=checkpoint)


def test_a_stall_takes_as_long_as_it_says(inject: Callable[..., Path]) -> None:
    inject("before-restore", "stall", seconds=0.05)
    start = monotonic()
    faults.fault_point("before-restore")
    assert monotonic() - start >= 0.05


def test_a_kill_leaves_no_time_for_anything(inject: Callable[..., Path]) -> None:
    marker = inject("after-commit", "kill", epoch=3)
    run = [sys.executable, "-c", KILLED]
    dead = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (dead.returncode, dead.stdout) == (-signal.SIGKILL, "alive\n")
    assert marker.exists()
    again = subprocess.run(run, capture_output=True, text=True, check=True)
    assert again.stdout == "alive\nstill alive\n"


def test_every_point_is_reached_somewhere_and_no_other_is() -> None:
    root = Path(holdfast.__file__).parent
    reached = {
        point
        for path in root.rglob("*.py")
        for point in re.findall(r'fault_point\(\s*"([^"]+)"', path.read_text())
    }
    assert reached == set(faults.POINTS)
