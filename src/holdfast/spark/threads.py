"""Threads of the driver: none of them ends unheard, and none keeps the program from ending."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("holdfast")


def guarded(what: str, work: Callable[[], None]) -> Callable[[], None]:
    """`work` for a thread: what it raises is in the log, since nobody else hears of it."""

    def guard() -> None:
        try:
            work()
        except BaseException:
            logger.exception("%s has ended with an error", what)

    return guard


def start_thread(what: str, work: Callable[[], None]) -> threading.Thread:
    """Let a thread of its own do some work; it inherits nothing of Spark, and needs no session."""
    thread = threading.Thread(target=guarded(what, work), name=f"holdfast: {what}", daemon=True)
    thread.start()
    return thread
