"""Classes of a script are shipped with annotations that need no script to be read."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
