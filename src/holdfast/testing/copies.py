"""Copies of the function under test, and checks of its subtask."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.config.parallelism import check_parallelism
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


def check_subtask(subtask: int, parallelism: int, max_parallelism: int) -> None:
    """Check that there is such a subtask."""
    check_parallelism(parallelism, max_parallelism, "the harness")
    if not 0 <= subtask < parallelism:
        raise ConfigurationError(
            f"the harness: there is no subtask {subtask}; {parallelism} of them count from 0"
        )


def copier(function: Any) -> Callable[[], Any]:
    """Makes the function anew for every epoch, as the tasks of a job do."""
    with suppress(Exception):
        return partial(pickle.loads, pickle.dumps(function))
    # Local functions and classes cannot be pickled by name.
    with suppress(Exception):
        return partial(copy.deepcopy, copy.deepcopy(function))
    return lambda: function
