"""The events, as Parquet files: one file is one epoch.

Everything is drawn from fixed seeds, and the stream of a workload is the same however
it is cut into epochs. Files are kept and used again.

Each file holds two row groups, and all events of a key are in the same one, in order:
two tasks may read a file side by side, as two partitions of a keyed topic would be,
and the order of a key's events is still defined.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import IDLE, TRANSITIONS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

DATA_ROOT = Path(__file__).resolve().parent.parent / "build" / "benchmark-data"
"""Where generated events are kept; ignored by git."""

BLOCK = 1_000_000
_SEED = 20_260_101
# The file source reads files in the order of their modification times.
_FIRST_MTIME = 1_700_000_000


def prepare(workload: Workload, events_per_epoch: int, epochs: int, root: Path = DATA_ROOT) -> Path:
    """Directory that holds exactly the first `epochs` epochs of a workload's stream."""
    directory = root / f"{workload.name}-{events_per_epoch}x{epochs}"
    if not directory.exists():
        partial = directory.with_suffix(f".{os.getpid()}.partial")
        partial.mkdir(parents=True)
        stream = _epochs(_STREAMS[workload.name](workload), events_per_epoch)
        for index in range(epochs):
            _write(next(stream), workload, partial / f"epoch-{index:05d}.parquet", index)
        partial.rename(directory)
    return directory


def _epochs(blocks: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Cut a stream of tables into tables of exactly `size` rows."""
    rest = next(blocks)
    while True:
        while rest.num_rows < size:
            rest = pa.concat_tables([rest, next(blocks)])
        yield rest.slice(0, size)
        rest = rest.slice(size)


def _write(table: pa.Table, workload: Workload, path: Path, index: int) -> None:
    odd = table.column("_odd").to_numpy()
    columns = table.select(list(workload.columns))
    with pq.ParquetWriter(path, columns.schema) as writer:
        for half in (columns.filter(pa.array(odd == 0)), columns.filter(pa.array(odd == 1))):
            writer.write_table(half, row_group_size=max(1, half.num_rows))
    os.utime(path, (_FIRST_MTIME + index, _FIRST_MTIME + index))


def _table(key_indexes: NDArray[np.int64], **columns: Any) -> pa.Table:
    return pa.table({**columns, "_odd": (key_indexes & 1).astype(np.int8)})


def _strings(names: list[str], indexes: NDArray[np.int64]) -> pa.Array:
    return pa.array(names).take(pa.array(indexes))


def _w1(workload: Workload) -> Iterator[pa.Table]:
    """URLs whose frequency falls with their rank, as in Zipf's law."""
    urls = [f"/api/v1/{kind}/{i}" for i, kind in zip(range(workload.keys), _kinds(), strict=False)]
    weights = np.cumsum(1.0 / np.arange(1, workload.keys + 1))
    start = 0
    while True:
        rng = np.random.default_rng((_SEED, 1, start))
        rank = np.searchsorted(weights, rng.random(BLOCK) * weights[-1]).astype(np.int64)
        ts = 1_700_000_000_000 + np.arange(start, start + BLOCK)
        user = rng.integers(0, 1_000_000, BLOCK)
        yield _table(rank, ts=ts, url=_strings(urls, rank), user=user)
        start += BLOCK


def _kinds() -> Iterator[str]:
    while True:
        yield from ("orders", "users", "carts", "items", "search", "sessions", "invoices")


def _w2(workload: Workload) -> Iterator[pa.Table]:
    """Walks through the state machine; about one event in a hundred is invalid."""
    kinds = sorted({kind for _, kind in TRANSITIONS})
    walk = _Walk(workload.keys, kinds)
    addresses = 10 << 24 | np.random.default_rng((_SEED, 2)).permutation(1 << 24)[: workload.keys]
    start = 0
    while True:
        rng = np.random.default_rng((_SEED, 2, start))
        rounds = [walk.round(rng) for _ in range(BLOCK // workload.keys)]
        sources = np.concatenate([source for source, _ in rounds])
        chosen = np.concatenate([kind for _, kind in rounds])
        ts = 1_700_000_000_000 + np.arange(start, start + BLOCK)
        yield _table(sources, ts=ts, source=addresses[sources], type=_strings(kinds, chosen))
        start += BLOCK


class _Walk:
    """All sources of W2, each somewhere in the state machine."""

    def __init__(self, sources: int, kinds: list[str]) -> None:
        states = [IDLE, *sorted({state for state, _ in TRANSITIONS} - {IDLE})]
        self._current = np.zeros(sources, dtype=np.int64)
        self._next = np.full((len(states), len(kinds)), -1, dtype=np.int64)
        for (state, kind), target in TRANSITIONS.items():
            self._next[states.index(state), kinds.index(kind)] = states.index(target)
        # Every state's choices repeated to one width, so that one draw serves all states.
        self._valid = np.array([np.resize(np.flatnonzero(row >= 0), 60) for row in self._next])
        self._invalid = np.array([np.resize(np.flatnonzero(row < 0), 60) for row in self._next])

    def round(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One event of every source, in random order: sources and event types."""
        source = rng.permutation(len(self._current))
        state = self._current[source]
        pick = rng.integers(0, self._valid.shape[1], len(source))
        wrong = rng.random(len(source)) < 0.01
        kind = np.where(wrong, self._invalid[state, pick], self._valid[state, pick])
        self._current[source] = np.where(wrong, state, self._next[state, kind])
        return source, kind


def _w3(workload: Workload) -> Iterator[pa.Table]:
    """Every key twice in each million events, in random order."""
    labels = [f"label-{i:03d}" for i in range(500)]
    start = 0
    while True:
        rng = np.random.default_rng((_SEED, 3, start))
        keys = rng.permutation(np.repeat(np.arange(workload.keys), BLOCK // workload.keys))
        # Multiples of a quarter add up without rounding, so totals compare exactly.
        amount = rng.integers(1, 4_000, BLOCK) * 0.25
        label = rng.integers(0, len(labels), BLOCK)
        yield _table(keys, key=keys, amount=amount, label=_strings(labels, label))
        start += BLOCK


_STREAMS: dict[str, Callable[[Workload], Iterator[pa.Table]]] = {"W1": _w1, "W2": _w2, "W3": _w3}
