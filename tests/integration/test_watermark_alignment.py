"""Sources that wait for each other, on real Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    KeyedProcessFunction,
    ReplayableSource,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.errors import JobGraphError
from tests.support.recovery_jobs import Ledger
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from holdfast import DataStream

ROWS = "source string, at bigint"
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
DRIFT, STEP, EPOCH = 50, 10, 4
"""How far sources may drift apart, the time between two elements of the fast one, and the
elements of a source in an epoch."""
KILLED_AT = 60
ALIGNED = BY_AT.with_watermark_alignment("both", DRIFT)


class Leads(KeyedProcessFunction):
    """Every element, and how far the fast source is ahead; kills its worker once, if told to."""

    def __init__(self, kill: Path | None = None) -> None:
        self.kill = None if kill is None else str(kill)

    def open(self, ctx: Any) -> None:
        self.fast = ctx.get_state(ValueStateDescriptor("fast", int))
        self.slow = ctx.get_state(ValueStateDescriptor("slow", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        strikes = value.source == "slow" and value.at == KILLED_AT
        if self.kill is not None and strikes and not os.path.exists(self.kill):
            Path(self.kill).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (self.fast if value.source == "fast" else self.slow).update(value.at)
        yield value.source, value.at, (self.fast.value() or 0) - (self.slow.value() or 0)


def generated(env: StreamExecutionEnvironment, name: str, step: int, count: int) -> DataStream:
    return env.from_generator(
        lambda n: (name, n * step), count=count, type_info=ROWS, name=name
    ).uid(name)


def drifting(
    env: StreamExecutionEnvironment,
    strategy: WatermarkStrategy,
    slow: int,
    kill: Path | None = None,
) -> list[tuple[Any, ...]]:
    """Run two generators, of which one is fast and has 40 elements."""
    env.set_max_events_per_epoch(EPOCH)
    streams = [generated(env, "fast", STEP, 40), generated(env, "slow", 1, slow)]
    timed = [one.assign_timestamps_and_watermarks(strategy) for one in streams]
    leads = timed[0].union(timed[1]).key_by(lambda value: 0)
    ledger = Ledger()
    leads.process(Leads(kill), f"{ROWS}, lead bigint").uid("leads").foreach_batch(ledger)
    assert (f"{DRIFT} ms ahead of group 'both'" in env.explain()) is (strategy is ALIGNED)
    statistics = env.execute("drifting").statistics
    assert statistics.paused_sources == ()
    if kill is not None:
        assert statistics.restarts == 1
        assert statistics.checkpoints is not None
        assert statistics.checkpoints.restored == 1
    return ledger.rows


def elements(slow: int) -> list[tuple[str, int]]:
    """All elements of both generators."""
    return [("fast", n * STEP) for n in range(40)] + [("slow", n) for n in range(slow)]


def leads(rows: list[tuple[Any, ...]]) -> list[int]:
    """How far the fast source was ahead, while the slow one had elements."""
    return [lead for source, _, lead in rows if source == "slow"]


@pytest.mark.versions
def test_a_fast_source_waits_for_a_slow_one_and_reads_on_when_that_has_ended(
    env: StreamExecutionEnvironment,
) -> None:
    """The query ends in between: Spark finds nothing new in either of them."""
    free, together = (drifting(env, strategy, 120) for strategy in (BY_AT, ALIGNED))
    for rows in (free, together):
        assert sorted(row[:2] for row in rows) == elements(120)
    assert max(leads(free)) > 300
    assert max(leads(together)) <= DRIFT + (EPOCH + 1) * STEP


def test_a_killed_worker_changes_nothing(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    env.enable_checkpointing("100 ms")
    env.configure({"execution.checkpointing.dir": str(tmp_path / "checkpoints")})
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    rows = drifting(env, ALIGNED, 100, tmp_path / "killed")
    assert sorted(row[:2] for row in rows) == elements(100)
    assert max(leads(rows)) <= DRIFT + (EPOCH + 1) * STEP


class Told(ReplayableSource[Any]):
    """Elements as they are written into a file, one time per line."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        Path(path).touch()

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int) -> int:
        return len(Path(self.path).read_text().splitlines())

    def read(self, start: int, end: int) -> Iterable[Any]:
        lines = Path(self.path).read_text().splitlines()[start:end]
        return [(Path(self.path).name, int(line)) for line in lines]

    def tell(self, *times: int) -> None:
        with open(self.path, "a") as file:
            file.writelines(f"{time}\n" for time in times)


@pytest.mark.parametrize("idleness", [False, True])
def test_an_endless_source_waits_for_one_that_is_silent_unless_that_is_idle(
    env: StreamExecutionEnvironment, tmp_path: Path, idleness: bool
) -> None:
    strategy = ALIGNED.with_idleness("300 ms") if idleness else ALIGNED
    fast, slow = Told(tmp_path / "fast"), Told(tmp_path / "slow")
    timed = [
        env.add_source(source, ROWS).uid(uid).assign_timestamps_and_watermarks(strategy)
        for source, uid in ((fast, "fast"), (slow, "slow"))
    ]
    ledger = Ledger()
    timed[0].union(timed[1]).map(lambda row: row, ROWS).foreach_batch(ledger)
    fast.tell(1000)
    slow.tell(0)
    client = env.execute_async("told")
    try:
        wait_for(lambda: len(ledger.rows) == 2, "the first elements")
        wait_for(lambda: client.statistics().paused_sources == ("fast",), "fast to wait")
        fast.tell(2000)
        if not idleness:
            slow.tell(900)
            wait_for(lambda: ("slow", 900) in ledger.rows, "the slow source")
            assert ("fast", 2000) not in ledger.rows
            slow.tell(1000)
        wait_for(lambda: ("fast", 2000) in ledger.rows, "the fast source to read on")
    finally:
        client.cancel()


def test_a_dataframe_cannot_wait(env: StreamExecutionEnvironment, file_stream: Any) -> None:
    frame: DataFrame = file_stream([[("fast", 1)]], ROWS)
    stream = env.from_dataframe(frame).assign_timestamps_and_watermarks(ALIGNED)
    stream.print()
    with pytest.raises(JobGraphError, match="a streaming DataFrame, which Holdfast cannot pause"):
        env.execute("refused")


def test_nothing_waits_in_one_pass(env: StreamExecutionEnvironment) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    assert len(drifting(env, ALIGNED, 6)) == 46
