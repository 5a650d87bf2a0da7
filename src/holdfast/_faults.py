"""Faults as data: points of the protocol at which a test lets a process fail.

A process reaches named points; nothing happens there unless the environment variable
`HOLDFAST_FAULTS` holds a JSON list such as

    [{"point": "after-commit", "action": "kill", "once": "/tmp/x/marker", "epoch": 3}]

or the absolute path of a file that holds one, so that faults can change while processes
live; without such a file there are none.

`action` is `kill` (SIGKILL to this process), `raise`, or `stall` (for `seconds`). The
fault strikes once: `once` names a file that is created when it does. Further keys must
equal what the point tells about itself, such as `epoch`, `uid`, `subtask`, `checkpoint`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "HOLDFAST_FAULTS"

POINTS: Final = (
    "before-commit",
    "after-commit",
    "epoch-released",
    "before-snapshot",
    "after-snapshot",
    "before-upload",
    "during-upload",
    "before-savepoint-part",
    "after-savepoint-part",
    "after-upload",
    "before-metadata",
    "after-metadata",
    "before-publish",
    "during-publish",
    "published",
    "after-publish",
    "before-savepoint-metadata",
    "before-recovered-publish",
    "before-rescale",
    "before-restore",
    "during-restore",
    "after-restore",
    "during-delete",
)
"""Every point there is, in the order in which a checkpoint and a recovery pass them.

`before-rescale` is passed between the last checkpoint of a job attempt and the next one, which has
another number of subtasks. The last one is passed where a savepoint is deleted, once for everything
in its directory.
"""

_OWN_KEYS: Final = frozenset({"point", "action", "once", "seconds"})


class InjectedFault(RuntimeError):
    """Raised at a point, because a test wants it."""


watcher: Callable[..., None] | None = None
"""Called at every point that this process passes; for tests that run in it."""


def fault_point(point: str, **where: Any) -> None:
    """Pass `point`; fail there if the environment says so."""
    if watcher is not None:
        watcher(point, **where)
    if VARIABLE in os.environ:
        for fault in _faults(os.environ[VARIABLE]):
            if fault["point"] == point and _meant(fault, where) and _first_time(fault):
                _strike(fault, point)


def _faults(given: str) -> list[dict[str, Any]]:
    if os.path.isabs(given):
        try:
            given = Path(given).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
    faults: list[dict[str, Any]] = json.loads(given)
    return faults


def _meant(fault: dict[str, Any], where: dict[str, Any]) -> bool:
    return all(where.get(key) == fault[key] for key in fault.keys() - _OWN_KEYS)


def _first_time(fault: dict[str, Any]) -> bool:
    try:
        os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _strike(fault: dict[str, Any], point: str) -> None:
    match fault["action"]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stall":
            time.sleep(fault["seconds"])
        case _:
            raise InjectedFault(f"injected at {point}")
