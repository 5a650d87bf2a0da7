"""Other processes for the store contract: they open a store, and may be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD = """
import os, resource, sys, time
from pathlib import Path
from holdfast.config.backends import backend_named
from holdfast.errors import HoldfastError
from holdfast.state.store.opening import open_store

def say(word):
    print(word, flush=True)

def open_at(expected):
    return open_store(backend_named(sys.argv[1]), Path(sys.argv[2]), expected)
"""


@contextmanager
def child(backend: str, directory: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Run `program` in a process of its own, which is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HEAD + program, backend, str(directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """The next word the child says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def run_child(backend: str, directory: Path, program: str) -> str:
    """Last word of a child that runs to its end."""
    with child(backend, directory, program) as process:
        out, _ = process.communicate()
        assert process.returncode == 0, out
    return out.strip().splitlines()[-1]


def kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill the child so long from now, unless it has ended by then."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
