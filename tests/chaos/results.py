"""What the driver of the chaos job keeps of its output, for the end of the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.chaos.compare import tally_of
from tests.chaos.events import NOTHING, Tally

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame


class Results:
    """The newest state of every key and subtask that came out, in a file.

    What came last counts, not what is largest: a state that has lost something must not
    hide behind an older output. Output comes with its checkpoint, once or again under the
    same id; figures of all events that came tell that each came under one id alone.
    """

    def __init__(self, path: Path, data: int) -> None:
        self._path = path
        self._data = data
        self.tables: dict[str, Any] = {
            **{"key": {}, "team": {}, "ledger": {}, "seen": 0},
            **{"checkpoint": 0, "output": NOTHING, "all": NOTHING, "faults": []},
        }
        if path.exists():
            self.tables = json.loads(path.read_text())
        self.only_probes = False
        """Whether the last output held no data: all of it is processed then."""

    def take(self, rows: DataFrame, checkpoint: int) -> None:
        """Take what has become final with a checkpoint."""
        found = rows.collect()
        numbers = [row.folded.event.number for row in found]
        self._account(numbers, checkpoint)
        if found:
            self.only_probes = min(numbers) >= self._data
            self.tables["seen"] = max(self.tables["seen"], max(numbers) + 1)
        # Within a checkpoint, what has seen most events came last.
        for row in sorted(found, key=lambda row: row.folded.event.ledger.events):
            event = row.folded.event
            self.tables["ledger"][str(event.subtask)] = [*event.ledger]
        for row in sorted(found, key=lambda row: row.folded.tally.events):
            held = [*row.folded.tally, [[*pair] for pair in row.folded.buckets]]
            self.tables["key"][str(row.folded.event.key)] = held
        for row in sorted(found, key=lambda row: row.tally.events):
            held = [*row.tally, row.ranks, list(row.sample)]
            self.tables["team"][str(row.folded.team)] = held
        write_atomically(self._path, self.tables)

    def _account(self, numbers: list[int], checkpoint: int) -> None:
        """Add the output to the figures, unless it came before under the same id."""
        tables, output = self.tables, tally_of(numbers)
        if checkpoint > tables["checkpoint"]:
            tables["checkpoint"], tables["output"] = checkpoint, output
            tables["all"] = Tally(*tables["all"]).joined(output)
        elif checkpoint < tables["checkpoint"]:
            tables["faults"].append(
                f"output of checkpoint {checkpoint} after that of {tables['checkpoint']}"
            )
        elif [*output] != [*tables["output"]]:
            tables["faults"].append(
                f"checkpoint {checkpoint} came again with {output} instead of {tables['output']}"
            )


def forget_state(path: Path) -> dict[str, Any]:
    """Let a successor find no state in the results, but all else; which is returned."""
    tables: dict[str, Any] = json.loads(path.read_text())
    write_atomically(path, tables | {"key": {}, "team": {}, "ledger": {}})
    return tables


def events_given_out(path: Path) -> int:
    """How far the results have come, if there are any."""
    return int(json.loads(path.read_text())["seen"]) if path.exists() else 0


def write_atomically(path: Path, content: Any) -> None:
    """Let `path` hold `content` as JSON, wholly or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)
