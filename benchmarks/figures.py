"""Rows of figures: kept in a file, and shown as tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def record(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Put rows into a file in place of those of the same workloads; all that it holds then."""
    old = json.loads(path.read_text()) if path.exists() else []
    measured = {row["workload"] for row in rows}
    rows = [row for row in old if row["workload"] not in measured] + rows
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return rows


def show(rows: list[dict[str, Any]], say: Console) -> None:
    """Each kind of measurement as a table."""
    for kind in dict.fromkeys(row["workload"] for row in rows):
        mine = [row for row in rows if row["workload"] == kind]
        table = Table(title=kind)
        columns = [column for column in mine[0] if column != "workload"]
        for column in columns:
            table.add_column(column.replace("_", " "), justify="right")
        for row in mine:
            table.add_row(
                *(f"{v:,}" if isinstance(v, int | float) else str(v) for v in map(row.get, columns))
            )
        say.print(table)
