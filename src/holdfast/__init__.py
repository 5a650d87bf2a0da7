"""Holdfast: Apache Flink's state management and fault tolerance for PySpark.

The top-level packages, each importing only those below it:

    cli                         the command `holdfast`
    connectors                  sinks to files and databases
    spark | testing             the Spark side; harnesses for users' own tests
    control | registry          jobs over HTTP; the list of a machine's jobs
    state_processor             savepoints worked on offline
    checkpoint                  how state survives: coordinator, storage, commits, restores
    job                         the job as data: plans, watermarks, restarts, statistics
    runtime                     one subtask's work on record batches; knows no Spark
    state                       where values live: stores, timers, TTL, canonical tables
    api                         what users write: streams, functions, descriptors
    serde | storage | config    bytes, files, settings
    types                       what a value is
    errors | clock | _faults | _version

Every package may import the modules of the last row. The docstring of a package says what else it
may import, and what does not belong to it.

`__init__.pyi` lists the names of the front door and their modules. They are imported on first use.
Names that fewer programs need are on shelves:

    holdfast.windows            assigners, triggers, evictors, window functions
    holdfast.functions          contexts and rarer interfaces of functions
    holdfast.sinks              base classes of sinks
    holdfast.savepoints         savepoints outside a running job
    holdfast.restarts           restart strategies
    holdfast.serializers        serializers of state
    holdfast.statistics         statistics of jobs and checkpoints
    holdfast.errors             all errors
    holdfast.testing            harnesses for tests of functions
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
_SHELVES = (
    "windows",
    "functions",
    "sinks",
    "savepoints",
    "restarts",
    "serializers",
    "statistics",
    "errors",
    "testing",
)
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name or a shelf on first use; `import holdfast` loads none of them."""
    if name in _HOME_OF:
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value
    if name in _SHELVES:
        return import_module(f"holdfast.{name}")
    if not name.startswith("_"):
        for shelf in _SHELVES:
            if name in vars(import_module(f"holdfast.{shelf}")):
                # Python replaces the message of an AttributeError in `from holdfast import name`.
                raise ImportError(
                    f"{name} is in holdfast.{shelf}: from holdfast.{shelf} import {name}"
                )
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
