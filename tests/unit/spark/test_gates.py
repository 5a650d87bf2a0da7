"""Gates between the driver and the process that asks a source for its next offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast.spark.sources import data_source
from holdfast.spark.sources.data_source import IndexedSource, ReplayedElements, _StreamReader
from holdfast.spark.sources.gates import Gate, Gates
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(str(tmp_path / "gate"))


def reader(gate: Gate, count: int | None = 10) -> _StreamReader:
    source = IndexedSource("numbers", range(10), count, max_rows=4)
    return _StreamReader(
        ReplayedElements(source, StreamType.of("n bigint"), "numbers", "index", gate)
    )


def asked(reader: _StreamReader, start: int) -> int:
    end: int = reader.latestOffset({"index": start}, ReadAllAvailable())["index"]
    return end


def test_a_source_behind_a_closed_gate_has_nothing_new(gate: Gate) -> None:
    numbers = reader(gate)
    assert asked(numbers, 0) == 4
    gate.set_closed(True)
    assert asked(numbers, 4) == 4
    assert (gate.has_refused, gate.has_ended) == (True, False), "there is more"
    gate.set_closed(False)
    assert gate.has_refused, "it was not asked again"
    assert asked(numbers, 4) == 8
    assert not gate.has_refused


def test_a_rate_does_not_make_up_for_a_pause(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(data_source, "monotonic", lambda: now[0])
    source = IndexedSource("numbers", range(10), 10, rate=1.0)
    numbers = _StreamReader(
        ReplayedElements(source, StreamType.of("n bigint"), "numbers", "index", gate)
    )
    assert asked(numbers, 0) == 0
    now[0] = 2
    assert asked(numbers, 0) == 2
    gate.set_closed(True)
    now[0] = 6
    assert asked(numbers, 2) == 2
    gate.set_closed(False)
    assert asked(numbers, 2) == 2
    now[0] = 7
    assert asked(numbers, 2) == 3


def test_a_source_tells_when_it_has_nothing_more_to_read(gate: Gate) -> None:
    numbers = reader(gate)
    assert asked(numbers, 10) == 10
    assert gate.has_ended
    assert asked(numbers, 0) == 4
    assert not gate.has_ended, "a recovery has taken it back"


def test_a_source_without_an_end_has_ended_only_where_the_query_ends(gate: Gate) -> None:
    numbers = reader(gate, None)
    numbers._elements.source._limit = 4  # type: ignore[attr-defined]
    assert asked(numbers, 4) == 4
    assert not gate.has_ended
    numbers._draining = True
    assert asked(numbers, 4) == 4
    assert gate.has_ended


def test_gates_are_opened_and_closed_together(tmp_path: Path) -> None:
    one, two = (Gate(str(tmp_path / name)) for name in "ab")
    gates = Gates({"a": one, "b": two})
    assert gates
    assert not Gates()
    assert (gates.get("a"), gates.get("c")) == (one, None)
    gates.close_only({"a"})
    assert [one.is_closed, two.is_closed] == [True, False]
    gates.close_only({"b"})
    assert [one.is_closed, two.is_closed] == [False, True]
    two.note(ended=True)
    one.note(refused=True)
    assert gates.ended() == {"b"}
    assert gates.refused() == {"a"}
    gates.reset()
    assert not two.is_closed
    assert gates.ended() == frozenset()
    assert list(tmp_path.iterdir()) == []
