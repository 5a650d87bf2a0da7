"""State types that a script defines itself, whatever was asked of the program before it ran."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCRIPT = """
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import msgspec

from holdfast import (
    KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment, ValueStateDescriptor,
)
from holdfast.testing import OperatorHarness
from tests.support.recovery_tools import wait_for


class Color(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    x: int
    y: float


class Note(TypedDict):
    text: str


class Entry(msgspec.Struct, frozen=True):
    key: str
    color: Color = Color.RED


@dataclass
class Account:
    count: int
    place: Place
    notes: list[Note]
    entry: Entry | None = None


class Keep(KeyedProcessFunction):
    def open(self, ctx):
        self.account = ctx.get_state(ValueStateDescriptor("account", Account))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", Place, Entry))

    def process_element(self, value, ctx):
        known = self.account.value() or Account(0, Place(0, 0.5), [])
        known.count += 1
        known.entry = value
        known.notes = [{"text": value.key}]
        self.account.update(known)
        self.seen.put(Place(known.count % 3, 0.5), value)
        yield (value.key, known.count, known.entry.color.value, len(dict(self.seen.items())))


def start(savepoint=None):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    rows = env.from_generator(lambda i: Entry("ab"[i % 2]), rate=100, type_info=Entry).uid("rows")
    kept = rows.key_by(lambda e: e.key).process(Keep(), tuple[str, int, str, int]).uid("keep")
    results, compared = [], None
    kept.foreach_batch(lambda df, epoch: results.extend(map(tuple, df.collect())))
    if savepoint is not None:
        compared = env.compare_savepoint(savepoint)
    shown = env.explain()
    client = env.execute_async("a script", from_savepoint=savepoint)
    wait_for(lambda: results, "results")
    return client, results, compared, shown


with OperatorHarness(Keep(), key=lambda e: e.key) as harness:
    harness.push(Entry("a"))
    alone = harness.take()
client, first, _, shown = start()
savepoint = client.stop_with_savepoint(storage)
client, second, compared, _ = start(savepoint)
client.cancel()
"""


@pytest.mark.versions
def test_a_script_may_compare_explain_and_test_its_program_before_it_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = {"spark": spark, "storage": str(tmp_path / "storage")}
    ran = runpy.run_path(str(script), init_globals=given, run_name="__main__")
    assert ran["alone"] == [("a", 1, "red", 1)]
    assert "value 'account': Account" in ran["shown"]
    assert ran["compared"].fits, str(ran["compared"])
    states = {state.name: state.verdict for state in ran["compared"].operator("keep").states}
    assert states == {"account": "as is", "seen": "as is"}
    counted = [row for row in ran["first"] + ran["second"] if row[0] == "a"]
    assert counted == [("a", n, "red", min(n, 3)) for n in range(1, len(counted) + 1)]
