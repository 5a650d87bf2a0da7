"""Calls in several threads, none of which keeps the program from ending."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
"""What a call is given."""
R = TypeVar("R")
"""What a call gives back."""


def in_threads(
    function: Callable[[T], R], items: Iterable[T], threads: int, name: str
) -> Iterator[R]:
    """Results of `function` for all items, as they come, in any order.

    What a call raises is raised here, once the calls under way have ended; no other begins.
    Unlike those of a `ThreadPoolExecutor`, these threads do not keep the program from ending.
    """
    todo = deque(items)
    results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
    expected = len(todo)

    def work() -> None:
        while True:
            try:
                item = todo.popleft()
            except IndexError:
                return
            try:
                results.put((function(item), None))
            except BaseException as error:
                todo.clear()
                results.put((None, error))

    started = [
        threading.Thread(target=work, name=name, daemon=True) for _ in range(min(threads, expected))
    ]
    for thread in started:
        thread.start()
    try:
        for _ in range(expected):
            result, error = results.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]
    finally:
        todo.clear()
        for thread in started:
            thread.join()
