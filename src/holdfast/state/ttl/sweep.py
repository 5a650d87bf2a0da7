"""Removes expired entries that are not read, a few at the end of every epoch.

A **pass** checks all entries of a state in key order, over several epochs. It begins when a
quarter of the time to live has passed since the last pass began. Its cost is bounded by a share
of the epoch's duration, so it never delays a job, and a busy job is swept faster than an idle
one. Other strategies check some entries per access of the state, or all before a snapshot.

Only states registered in the epoch are swept, since the configuration is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.timers.layout import FIRST_TIME, time_bytes
from holdfast.state.ttl.layout import SWEEP_PREFIX, UNKNOWN, Cursor, time_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.ttl import IncrementalCleanup, PassCleanup, StateTtlConfig
    from holdfast.state.store.protocol import StateStore
    from holdfast.state.ttl.states import Expiry, TtlContext, TtlTime

    Changes = list[tuple[bytes, bytes | None]]

SHARE: Final = 0.03
"""Share of an epoch's duration that passes may take."""
LEAST: Final = 1000
"""Minimum number of entries that a pass checks per state and epoch."""
STEP: Final = 1000
"""Maximum number of entries checked between two looks at the clock."""
PASSES_PER_TTL: Final = 4
"""Number of passes per time to live."""


@dataclass(frozen=True, slots=True)
class SweptState:
    """A state with TTL that is registered in this epoch."""

    name: str
    """Stored name."""
    kind: str
    prefix: bytes
    config: StateTtlConfig
    time: TtlTime
    handles: list[Expiry] = field(default_factory=list)

    @property
    def accesses(self) -> int:
        """Number of reads and writes in this epoch."""
        return sum(handle.accesses for handle in self.handles)


class Sweep:
    """Sweeps the states of one store, at the end of every epoch."""

    def __init__(self, store: StateStore, context: TtlContext) -> None:
        """No states yet."""
        self._store = store
        self._context = context
        self._states: dict[str, SweptState] = {}
        self._changes: Changes = []
        self.restart()

    def restart(self) -> None:
        """Start another epoch: measure its time and count its accesses."""
        self._opened = self._context.seconds()
        self.removed = 0
        """Number of removed entries."""
        for state in self._states.values():
            for handle in state.handles:
                handle.accesses = 0

    def add(self, state: SweptState, handle: Expiry) -> None:
        """Add a state to sweep; `handle` counts its accesses."""
        self._states.setdefault(state.name, state).handles.append(handle)

    def run(self, *, snapshot: bool) -> None:
        """Remove expired entries by each state's cleanup strategies, in the store.

        Args:
            snapshot: Whether a snapshot follows.
        """
        if not self._states:
            return
        started = self._context.seconds()
        for number, state in enumerate(self._states.values(), 1):
            # Without event time nothing can have expired.
            if state.time.now() != FIRST_TIME:
                share = SHARE * number / len(self._states)
                self._sweep(state, snapshot, partial(self._is_within, started, share))

    def _is_within(self, started: float, share: float) -> bool:
        now = self._context.seconds()
        return now - started < share * (now - self._opened)

    def _sweep(self, state: SweptState, snapshot: bool, has_time: Callable[[], bool]) -> None:
        key = SWEEP_PREFIX + state.name.encode()
        before = self._store.get(key)
        cursor = Cursor.decoded(before)
        strategies = state.config.cleanup_strategies
        if snapshot and strategies.in_full_snapshot and not self._context.incremental_snapshots:
            _begin(state, cursor)
            self._look(state, cursor, lambda looked: STEP)
        else:
            if strategies.incremental is not None:
                self._look_by_use(state, cursor, strategies.incremental)
            if strategies.passes is not None:
                self._go_on(state, cursor, strategies.passes, has_time)
        if self._changes:
            for handle in state.handles:
                handle.evict()
        if cursor.began is not None and cursor.encoded() != before:
            self._changes.append((key, cursor.encoded()))
        self._store.write(self._changes)
        self._changes = []

    def _look_by_use(self, state: SweptState, cursor: Cursor, by: IncrementalCleanup) -> None:
        uses = state.accesses
        if by.run_cleanup_for_every_record:
            uses += self._context.records()
        budget, first = uses * by.cleanup_size, cursor.place
        if not budget:
            return
        if not first:
            _begin(state, cursor)
        looked = self._look(state, cursor, lambda looked: min(STEP, budget - looked))
        if first and not cursor.place and looked < budget:
            # Wrap around at the end, but check no entry twice.
            _begin(state, cursor)
            self._look(state, cursor, lambda more: min(STEP, budget - looked - more), first)

    def _go_on(
        self, state: SweptState, cursor: Cursor, by: PassCleanup, has_time: Callable[[], bool]
    ) -> None:
        if not cursor.place:
            if not _is_due(state, cursor, by):
                return
            _begin(state, cursor)
        step = min(STEP, by.query_time_after_num_entries)
        self._look(state, cursor, lambda looked: step if looked < LEAST or has_time() else 0)

    def _look(
        self,
        state: SweptState,
        cursor: Cursor,
        wanted: Callable[[int], int],
        until: bytes | None = None,
    ) -> int:
        """Check entries from the cursor on.

        Args:
            state: State to sweep.
            cursor: Start position; updated.
            wanted: Number of entries to check next, from the number checked so far.
            until: Key to stop at, exclusive.

        Returns:
            Number of entries checked; for a list, of elements.
        """
        entries = self._store.scan(state.prefix, cursor.place)
        examine = self._examine_chunks if state.kind == "list" else self._examine_values
        looked = 0
        while (count := wanted(looked)) > 0:
            batch = list(islice(entries, count))
            if until is not None:
                batch = [entry for entry in batch if entry[0] < until]
            fresh = time_bytes(state.time.stamp())
            seen, removed = examine(state, batch, _limit(state), fresh)
            looked += seen
            cursor.looked += seen
            cursor.removed += removed
            self.removed += removed
            if len(batch) < count:
                self._end(state, cursor, until)
                break
            cursor.place = batch[-1][0] + b"\x00"
        return looked

    def _end(self, state: SweptState, cursor: Cursor, until: bytes | None) -> None:
        if until is not None:
            cursor.place = until
            return
        cursor.place = b""
        if 2 * cursor.removed > cursor.looked:
            self._store.reclaim(state.prefix)

    def _examine_values(
        self, state: SweptState, batch: list[tuple[bytes, bytes]], limit: bytes, fresh: bytes
    ) -> tuple[int, int]:
        """Collect changes of values; return the numbers of checked and removed entries."""
        at, removed, change = time_at(state.kind), 0, self._changes.append
        end = at + 8
        for key, value in batch:
            time = value[at:end]
            if time <= limit:
                if time != UNKNOWN:
                    removed += 1
                    change((key, None))
                elif fresh != UNKNOWN:
                    change((key, value[:at] + fresh + value[end:]))
        return len(batch), removed

    def _examine_chunks(
        self, state: SweptState, batch: list[tuple[bytes, bytes]], limit: bytes, fresh: bytes
    ) -> tuple[int, int]:
        """Collect changes of lists; return the numbers of checked and removed elements."""
        seen = removed = 0
        for key, chunk in batch:
            elements = unpack_chunk(chunk)
            seen += len(elements)
            if min(elements, default=UNKNOWN)[:8] > limit:
                continue
            kept = [
                fresh + element[8:] if element[:8] == UNKNOWN else element
                for element in elements
                if element[:8] > limit or element[:8] == UNKNOWN
            ]
            removed += len(elements) - len(kept)
            if kept != elements:
                self._changes.append((key, pack_chunk(kept) if kept else None))
        return seen, removed


def _begin(state: SweptState, cursor: Cursor) -> None:
    cursor.began = state.time.now()
    cursor.looked = cursor.removed = 0
    cursor.place = state.prefix


def _is_due(state: SweptState, cursor: Cursor, by: PassCleanup) -> bool:
    if cursor.began is None:
        return True
    interval = state.config.ttl_ms / PASSES_PER_TTL
    if by.periodic_compaction_ms:
        interval = min(interval, by.periodic_compaction_ms)
    # If time went back, as watermarks do on a restore, the start of the last pass is useless.
    return not 0 <= state.time.now() - cursor.began < interval


def _limit(state: SweptState) -> bytes:
    """Latest time of expired entries, as stored; entries of unknown time do not expire."""
    return time_bytes(max(state.time.now() - state.config.ttl_ms, FIRST_TIME))
