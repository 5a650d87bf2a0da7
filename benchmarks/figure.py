"""Draws the figure of the README from the recorded throughput: `python -m benchmarks.figure`."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "latest.json"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "throughput.svg"
EVENTS_PER_EPOCH = 200_000
SYSTEMS = {
    ("transformWithStateInPandas", "rocksdb"): ("transformWithStateInPandas", "#9aa5b1"),
    ("transformWithState", "rocksdb"): ("transformWithState", "#616e7c"),
    ("holdfast", "rocksdb"): ("Holdfast, RocksDB", "#2f8132"),
    ("holdfast", "hashmap"): ("Holdfast, hash map", "#57ae5b"),
}
WORKLOADS = {
    "W1": "W1: count 100,000 skewed keys",
    "W2": "W2: state machine, 50,000 keys",
    "W3": "W3: 500,000 keys, three fields",
}
WIDTH, LEFT, BAR, GAP, GROUP = 860, 230, 18, 4, 34


def figure(rows: list[dict[str, Any]]) -> str:
    """An SVG of the rates in epochs of 200,000 events, a group of bars for every workload."""
    rates = {
        (row["workload"], row["system"], row["backend"]): int(row["events_per_s"])
        for row in rows
        if row["events_per_epoch"] == EVENTS_PER_EPOCH
    }
    scale = (WIDTH - LEFT - 150) / max(
        rate for (_, system, _), rate in rates.items() if system == "holdfast"
    )
    parts = [_text(16, 24, "Events per second, on two cores", size=16, weight="bold")]
    top = 44
    for workload, title in WORKLOADS.items():
        parts.append(_text(16, top + 14, title, size=13, weight="bold"))
        top += 24
        base = rates[workload, "transformWithState", "rocksdb"]
        for (system, backend), (name, colour) in SYSTEMS.items():
            rate = rates[workload, system, backend]
            width = max(1.0, rate * scale)
            parts.append(_text(LEFT - 8, top + 14, name, anchor="end"))
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
            )
            times = f", {rate / base:.0f} times" if system == "holdfast" else ""
            parts.append(_text(LEFT + width + 6, top + 14, f"{rate:,}{times}"))
            top += BAR + GAP
        top += GROUP - 2 * GAP
    parts.append(
        _text(16, top, "Ratios are to transformWithState. Recorded by make bench.", size=11)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 16}" '
        'font-family="system-ui, sans-serif" role="img" '
        'aria-label="Throughput of Holdfast beside transformWithState">'
    )
    ground = f'<rect width="{WIDTH}" height="{top + 16}" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="#1f2933">{escape(text)}</text>'
    )


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(figure(json.loads(RECORDED.read_text())))
    print(FIGURE)
