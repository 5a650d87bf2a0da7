"""Jobs that are broken on purpose, and what they must have come to all the same.

Their results do not depend on where epochs are cut: `Ledger` keeps the output of those
epochs only that no recovery has taken back, and the last output of a key tells all that
its state holds.
"""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import (
    Configuration,
    DataStream,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.api.checkpointed import CheckpointedFunction
from tests.support.recovery_tools import figures, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient
    from holdfast.config.backends import StateBackend
    from holdfast.statistics import JobStatistics

TIMEOUT = 120
KEYS = 20
BUCKETS = 3
HASHMAP, ROCKSDB = "hashmap", "rocksdb"
BACKENDS: dict[str, StateBackend] = {
    HASHMAP: HashMapStateBackend(),
    ROCKSDB: EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True),
}
SEEN = ListStateDescriptor("seen", int)
NAMES = ListStateDescriptor("names", str)
BOOKED = "k string, i bigint, n bigint, total bigint, listed bigint, thirds string"
NUMBERED = OutputTag("numbered", "subtask bigint, n bigint, total bigint, known string")
SUMMED = "bucket bigint, rows bigint, total bigint"


class Event(NamedTuple):
    """One element of the source."""

    i: int
    k: str


def event(i: int) -> Event:
    return Event(i, f"k{i % KEYS}")


class Mishap(NamedTuple):
    """Raised once, or always, when a certain element arrives."""

    at: int
    marker: str | None = None

    def strike(self, i: int) -> None:
        if i == self.at and (self.marker is None or not Path(self.marker).exists()):
            if self.marker is not None:
                Path(self.marker).touch()
            raise ValueError(f"no luck with element {i}")


class Numbers(ProcessFunction, CheckpointedFunction):
    """Passes elements on; keeps them in list state, and its own name in union state."""

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.seen = store.get_list_state(SEEN)
        self.names = store.get_union_list_state(NAMES)
        self.numbers = list(self.seen.get())
        self.known = sorted(self.names.get())

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.parallelism = ctx.get_number_of_parallel_subtasks()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.numbers.append(value.i)
        yield value
        yield NUMBERED, (self.subtask, len(self.numbers), sum(self.numbers), " ".join(self.known))

    def snapshot_state(self, ctx: Any) -> None:
        self.seen.update(self.numbers)
        self.names.update([f"{self.parallelism}:{self.subtask}"])


class Books(KeyedProcessFunction):
    """Keeps of every key a count and a sum, all its elements, and a map of counts."""

    def __init__(self, mishap: Mishap | None = None) -> None:
        self.mishap = mishap

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self.total = ctx.get_state(ValueStateDescriptor("total", int))
        self.elements = ctx.get_list_state(ListStateDescriptor("elements", int))
        self.thirds = ctx.get_map_state(MapStateDescriptor("thirds", str, int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.mishap is not None:
            self.mishap.strike(value.i)
        self.count.update((self.count.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + value.i)
        self.elements.add(value.i)
        third = str(value.i % 3)
        self.thirds.put(third, (self.thirds.get(third) or 0) + 1)
        thirds = json.dumps(dict(sorted(self.thirds.items())))
        squares = sum(i * i for i in self.elements.get())
        yield (
            ctx.get_current_key(),
            value.i,
            self.count.value(),
            self.total.value(),
            squares,
            thirds,
        )


class Sums(KeyedProcessFunction):
    """A second keyed operator: rows and their sum by bucket."""

    def open(self, ctx: Any) -> None:
        self.rows = ctx.get_state(ValueStateDescriptor("rows", int))
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        self.rows.update((self.rows.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + value.i)
        yield ctx.get_current_key(), self.rows.value(), self.total.value()


class Ledger:
    """A sink on the driver that takes back the epochs that a recovery has taken back."""

    def __init__(self) -> None:
        self._epochs: dict[int, list[tuple[Any, ...]]] = {}

    def __call__(self, df: DataFrame, epoch: int) -> None:
        rows = [tuple(row) for row in df.collect()]
        for later in [e for e in self._epochs if e >= epoch]:
            del self._epochs[later]
        self._epochs[epoch] = rows

    @property
    def last_epoch(self) -> int:
        return max(self._epochs, default=0)

    def of_last_epoch(self) -> list[tuple[Any, ...]]:
        return self._epochs[self.last_epoch]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for epoch in sorted(self._epochs) for row in self._epochs[epoch]]

    def final(self, count: int) -> dict[Any, tuple[Any, ...]]:
        """For every key, in the first column, the row that has the most in column `count`."""
        best: dict[Any, tuple[Any, ...]] = {}
        for row in self.rows:
            if row[0] not in best or row[count] > best[row[0]][count]:
                best[row[0]] = row
        return best


class Outcome(NamedTuple):
    """What the state of a job has come to, by what it gave out."""

    elements: Counter[int]
    books: dict[str, tuple[Any, ...]]
    sums: dict[int, tuple[Any, ...]]


def expected(elements: Iterable[int]) -> Outcome:
    """What a job that nothing disturbs comes to."""
    by_key: dict[str, list[int]] = defaultdict(list)
    sums: dict[int, tuple[int, int]] = {}
    elements = list(elements)
    for i in elements:
        by_key[event(i).k].append(i)
        rows, total = sums.get(i % BUCKETS, (0, 0))
        sums[i % BUCKETS] = (rows + 1, total + i)
    books = {
        key: (
            len(mine),
            sum(mine),
            sum(i * i for i in mine),
            json.dumps(dict(sorted(Counter(str(i % 3) for i in mine).items()))),
        )
        for key, mine in by_key.items()
    }
    return Outcome(Counter(elements), books, sums)


def option(key: str) -> str:
    """The whole key of an option of checkpoints, or of another."""
    return key if key.startswith("execution.") else f"execution.checkpointing.{key}"


class RecoveryJob:
    """Operator state, and two keyed operators one behind the other.

    Args:
        spark: The session.
        directory: Where checkpoints are kept, as a path or URL.
        backend: Where local state is kept.
        parallelism: Subtasks of every operator.
        restarts: How often the job may restart.
        chain: Whether there is more than one keyed operator.
        settings: Further settings by Flink's keys; those of checkpoints without their prefix.
            None takes back what is set otherwise.
        like: A job whose outputs this one continues.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path | str,
        *,
        backend: str = HASHMAP,
        parallelism: int = 2,
        restarts: int = 3,
        chain: bool = False,
        settings: dict[str, Any] | None = None,
        like: RecoveryJob | None = None,
    ) -> None:
        # `Ledger` is to see epochs, which it takes back itself, also those behind a checkpoint
        # that turns out to be damaged.
        released = {"mode": "AT_LEAST_ONCE"}
        given = {"dir": str(directory), "interval": "10 ms", **released, **(settings or {})}
        self.env = StreamExecutionEnvironment.get_execution_environment(
            spark,
            Configuration({option(key): v for key, v in given.items() if v is not None}),
        )
        self.env.set_parallelism(parallelism).set_state_backend(BACKENDS[backend])
        strategy = RestartStrategies.fixed_delay_restart(restarts, 0)
        self.env.set_restart_strategy(strategy if restarts else RestartStrategies.no_restart())
        self.books: Ledger = Ledger() if like is None else copy.deepcopy(like.books)
        self.sums: Ledger = Ledger() if like is None else copy.deepcopy(like.sums)
        self.numbers = Ledger()
        self.chain = chain
        self.client: JobClient | None = None

    def settled(self) -> RecoveryJob:
        """Let every epoch end with a checkpoint, and the next one wait for its end."""
        self.env.add_epoch_listener(lambda _: self._settle())
        return self

    def _settle(self) -> None:
        def ended() -> bool:
            # Not known yet, if this is the first epoch.
            client = self.client
            return client is not None and (client.cancelled or not figures(client).in_progress)

        wait_for(ended, "the checkpoint to end")

    def start(
        self,
        source: DataStream | DataFrame,
        mishap: Mishap | None = None,
        job_id: str | None = None,
        name: str = "recovers",
        **beginning: Any,
    ) -> JobClient:
        """Run the operators on `source`, which has the columns of `Event`.

        Further arguments are those of `execute_async` that say where the job begins.
        """
        if not isinstance(source, DataStream):
            source = self.env.from_dataframe(source).uid("source")
        if job_id is not None:
            self.env.set_job_id(job_id)
        if self.chain:
            source = source.process(Numbers(), "i bigint, k string").uid("numbers")
            source.get_side_output(NUMBERED).foreach_batch(self.numbers)
        books = source.key_by("k").process(Books(mishap), BOOKED).uid("books")
        books.foreach_batch(self.books)
        if self.chain:
            sums = books.key_by(bucket).process(Sums(), SUMMED).uid("sums")
            sums.foreach_batch(self.sums)
        self.client = self.env.execute_async(name, **beginning)
        return self.client

    def run(self, source: DataStream | DataFrame, mishap: Mishap | None = None) -> JobStatistics:
        """Run the operators until there is nothing more to read."""
        self.env.set_available_now()
        return self.start(source, mishap).result(TIMEOUT).statistics

    def wait_for_checkpoint(self, elements: int) -> None:
        """Wait until so many elements are processed, and a checkpoint holds them all."""
        client = self.client
        assert client is not None

        def held() -> bool:
            assert not client.status().is_terminal, client.result()
            newest = figures(client).latest_completed
            done = len(self.books.rows) >= elements
            return done and newest is not None and (newest.epoch or 0) >= self.books.last_epoch

        wait_for(held, f"a checkpoint of {elements} elements")

    def outcome(self) -> Outcome:
        sums = self.sums.final(1) if self.chain else expected(r[1] for r in self.books.rows).sums
        return Outcome(
            Counter(row[1] for row in self.books.rows),
            {key: row[2:] for key, row in self.books.final(2).items()},
            {key: row[-2:] for key, row in sums.items()},
        )


def bucket(row: Any) -> int:
    number: int = row.i % BUCKETS
    return number
