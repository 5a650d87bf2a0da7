"""Holdfast: Apache Flink's state management and fault tolerance for PySpark.

The packages, each importing only those below it:

    connectors                  sinks to files and databases
    spark | testing             the Spark side; harnesses for users' own tests
    state_processor             savepoints worked on offline
    checkpoint                  how state survives: coordinator, storage, commits, restores
    job                         the job as data: plans, watermarks, restarts, statistics
    runtime                     one subtask's work on record batches; knows no Spark
    state                       where values live: stores, timers, TTL, canonical tables
    api                         what users write: streams, functions, descriptors
    serde | storage | config    bytes, files, settings
    types                       what a value is
    errors | clock | _faults | _version

`__init__.pyi` lists the public names and their homes. They are imported on first use.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast._version import VERSION

__version__ = VERSION


def _homes() -> dict[str, str]:
    """The module of every public name, read from the stub that type checkers read."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {name.asname: str(node.module) for node in imports for name in node.names if name.asname}


_HOME_OF = _homes()
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name on first use: workers and tests need not load what they leave."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
