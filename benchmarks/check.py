"""Whether the systems compute the same: each is held against plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.workloads import Workload


class WrongResultError(Exception):
    """A system's output is not what plain Python computes from the same events."""


def expected(workload: Workload, data_dir: Path, *, last_per_epoch: bool = False) -> list[Any]:
    """Sorted outputs of the workload; only each key's last in an epoch, if so asked."""
    state: dict[Any, Any] = {}
    outputs: list[Any] = []
    for path in sorted(data_dir.glob("*.parquet")):
        epoch: list[tuple[Any, Any]] = []
        columns = pq.read_table(path).to_pydict()
        for event in zip(*columns.values(), strict=True):
            key = event[workload.key_index]
            state[key], output = workload.step(state.get(key), event)
            if output is not None:
                epoch.append((key, output))
        outputs += dict(epoch).values() if last_per_epoch else [output for _, output in epoch]
    return sorted(outputs)


def kept(workload: Workload, output_dir: Path) -> list[Any]:
    """Sorted outputs that a run kept in `output_dir`."""
    table = ds.dataset(output_dir, format="parquet").to_table(columns=list(workload.output))
    return sorted(zip(*table.to_pydict().values(), strict=True))


def require_equal(what: str, actual: list[Any], wanted: list[Any]) -> None:
    """Raise `WrongResultError` unless both hold the same rows."""
    if actual != wanted:
        pairs = zip(actual, wanted, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(actual), len(wanted)))
        raise WrongResultError(
            f"{what} gave {len(actual)} rows where {len(wanted)} are right; in sorted order they "
            f"first differ in row {at}: {actual[at : at + 1]} instead of {wanted[at : at + 1]}"
        )
