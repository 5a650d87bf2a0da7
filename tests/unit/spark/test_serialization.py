"""Classes of a script are shipped so that they can be used where there is no script."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
from __future__ import annotations
import pickle, subprocess, sys
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple, TypedDict

import msgspec
from pyspark import cloudpickle

from holdfast.spark.serialization import resolve_annotations

@dataclass
class Inner:
    n: int
    d: Decimal

@dataclass
class Outer:
    inner: Inner
    following: Outer | None

class Row(NamedTuple):
    k: str
    o: Inner

class Entry(TypedDict):
    o: Inner

class Account(msgspec.Struct):
    o: Inner

class Lost:
    x: NoSuchName

resolve_annotations(list(globals().values()))
assert Lost.__annotations__ == {"x": "NoSuchName"}
data = cloudpickle.dumps((Outer, Row, Entry, Account))
read = (
    "import pickle, sys, typing;"
    "classes = pickle.load(sys.stdin.buffer);"
    "print([sorted(typing.get_type_hints(cls)) for cls in classes])"
)
subprocess.run([sys.executable, "-c", read], input=data, check=True)
"""


def test_annotations_of_a_script_can_be_read_in_a_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[['following', 'inner'], ['k', 'o'], ['o'], ['o']]"


CLASSES = Path(__file__).parents[2] / "support" / "script_classes.py"
READ = """
import pickle, sys
shipped, schema, stored = pickle.load(sys.stdin.buffer)
pickle.loads(shipped)(schema, stored)
"""


@pytest.mark.parametrize("before", ["fresh", "used"])
def test_classes_of_a_script_are_the_same_elsewhere(before: str) -> None:
    """Also if they have been types of a state before, as in a comparison or a harness."""
    script = subprocess.run(
        [sys.executable, str(CLASSES), before], capture_output=True, check=False, timeout=60
    )
    assert script.returncode == 0, script.stderr.decode()
    worker = subprocess.run(
        [sys.executable, "-c", READ],
        input=script.stdout,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert worker.returncode == 0, worker.stderr.decode()
