"""Key groups: the unit in which keyed state is distributed over subtasks.

The group of a key is `pmod(hash, max_parallelism)`, see `serde/keys.py`; a subtask owns a
range of groups. The formulas are Flink's: for every parallelism up to the maximum, the ranges
are contiguous and differ in length by at most one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.store.snapshot import ReadOnlySnapshot

ALL_KEY_GROUPS: Final = range(2**15)
"""The key groups of the largest max parallelism."""


def key_groups(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Key groups that `subtask` owns."""
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Subtask that owns `key_group`."""
    return key_group * parallelism // max_parallelism


def scan_groups(
    snapshot: ReadOnlySnapshot, state_id: int, key_groups: range
) -> Iterator[tuple[bytes, bytes]]:
    """Entries of a state in the key groups, in key order."""
    prefix = state_id.to_bytes(2, "big")
    start, stop = (prefix + n.to_bytes(2, "big") for n in (key_groups.start, key_groups.stop))
    return snapshot.scan(prefix, start, stop) if key_groups else iter(())
