"""Key groups: the unit in which keyed state is distributed over subtasks.

The group of a key is `pmod(hash, max_parallelism)`, see `serde/keys.py`; a subtask owns a
range of groups. The formulas are Flink's: for every parallelism up to the maximum, the ranges
are contiguous and differ in length by at most one.
"""

from __future__ import annotations


def key_groups(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Key groups that `subtask` owns."""
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Subtask that owns `key_group`."""
    return key_group * parallelism // max_parallelism
