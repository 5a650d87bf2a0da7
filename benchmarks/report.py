"""Results as JSON that later runs add to, and as a table to read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.harness import Result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def with_ratios(measured: Sequence[Result]) -> list[dict[str, Any]]:
    """Results as plain objects, each with its ratio to the peers it is read against."""
    rates = {(r.workload, r.events_per_epoch, r.system): r.events_per_s for r in measured}

    def ratio(result: Result, system: str) -> float | None:
        base = rates.get((result.workload, result.events_per_epoch, system))
        return None if base is None else round(result.events_per_s / base, 3)

    return [
        {
            **asdict(result),
            "seconds": [round(second, 3) for second in result.seconds],
            "events_per_s": round(result.events_per_s),
            "whole_run_events_per_s": round(result.whole_run_events_per_s),
            "ratio_to_transform_with_state": ratio(result, "transformWithState"),
            "ratio_to_identity": ratio(result, "identity"),
        }
        for result in measured
    ]


def load(path: Path) -> list[Result]:
    """Results written earlier; none if there is no such file."""
    if not path.exists():
        return []
    names = Result.__dataclass_fields__
    rows = json.loads(path.read_text())
    return [Result(**{name: value for name, value in row.items() if name in names}) for row in rows]


def write(path: Path, measured: Sequence[Result]) -> None:
    """Write results, with their ratios, as a JSON list, a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(row) for row in with_ratios(measured))
    path.write_text(f"[\n{rows}\n]\n")


def merged(old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """`new`, and of `old` whatever was not measured again."""

    def identity(result: Result) -> tuple[str, int, str, str]:
        return (result.workload, result.events_per_epoch, result.system, result.backend)

    by_identity = {identity(result): result for result in (*old, *new)}
    return [by_identity[key] for key in sorted(by_identity)]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Rows of `with_ratios` as a table to print."""
    grid = Table(
        title="events per second, two cores",
        caption="TWS: transformWithState; floor: the identity function",
        title_justify="left",
        caption_justify="left",
    )
    for column in ("workload", "epoch", "system", "backend"):
        grid.add_column(column, no_wrap=True)
    for column in ("events/s", "whole run", "x TWS", "x floor"):
        grid.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ratios = (row["ratio_to_transform_with_state"], row["ratio_to_identity"])
        grid.add_row(
            row["workload"],
            f"{row['events_per_epoch']:,}",
            row["system"],
            row["backend"],
            f"{row['events_per_s']:,}",
            f"{row['whole_run_events_per_s']:,}",
            *("-" if value is None else f"{value:.2f}" for value in ratios),
        )
    return grid
