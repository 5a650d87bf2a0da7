"""How much an object of the driver holds, for tests of what may not grow with time."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


def held(*roots: Any) -> dict[str, int]:
    """Length of every collection that is reached from `roots`, by its path.

    Only objects of Holdfast are entered; what several paths lead to counts once.
    """
    sizes: dict[str, int] = {}
    seen: set[int] = set()

    def look(value: Any, path: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, dict | list | set | frozenset | deque | tuple):
            sizes[path] = sizes.get(path, 0) + len(value)
            for one in value.values() if isinstance(value, dict) else value:
                look(one, f"{path}[]")
        elif type(value).__module__.startswith("holdfast.") and not isinstance(value, type):
            for name in _attributes(value):
                if not isinstance(got := getattr(value, name, None), threading.Thread):
                    look(got, f"{path}.{name}")

    for root in roots:
        look(root, type(root).__name__)
    return sizes


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Paths at which more than twice as much is held as before, with both lengths.

    A store has now more files, now fewer; what only ever grows is beyond that soon.
    """
    return {
        path: (before.get(path, 0), size)
        for path, size in after.items()
        if size > 2 * before.get(path, 0)
    }


def _attributes(value: Any) -> list[str]:
    slots = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if isinstance(name, str)
    ]
    return [*vars(value), *slots] if hasattr(value, "__dict__") else slots
