"""Removing what has expired and nobody reads, a little at the end of every epoch.

A **pass** looks at all entries of a state, in key order, epoch after epoch from where it
stopped. It begins when a quarter of the time to live has gone by since the last one began.
What it may cost is bounded by the time that the epoch has taken, so it never holds a job up,
and a busy job is swept faster than an idle one. Other strategies look at so many entries per
use of the state, or at all before a snapshot.

Only states that were registered in the epoch are swept: the configuration is not stored.
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
"""Part of an epoch's time that passes may take."""
LEAST: Final = 1000
"""Entries of each state that a pass looks at in any epoch."""
STEP: Final = 1000
"""Most entries that are looked at before time is looked at."""
PASSES_PER_TTL: Final = 4
"""Passes that begin while an entry lives."""


@dataclass(frozen=True, slots=True)
class SweptState:
    """A state with a time to live that is used in this epoch."""

    name: str
    """As it is stored."""
    kind: str
    prefix: bytes
    config: StateTtlConfig
    time: TtlTime
    handles: list[Expiry] = field(default_factory=list)

    @property
    def accesses(self) -> int:
        """How often it was read or written."""
        return sum(handle.accesses for handle in self.handles)


class Sweep:
    """Sweeps the states of one store, at the end of one epoch."""

    def __init__(self, store: StateStore, context: TtlContext) -> None:
        """No states yet."""
        self._store = store
        self._context = context
        self._opened = context.seconds()
        self._states: dict[str, SweptState] = {}
        self._changes: Changes = []
        self.removed = 0
        """Entries that were removed."""

    def add(self, state: SweptState, handle: Expiry) -> None:
        """Sweep a state, and note how often `handle` uses it."""
        self._states.setdefault(state.name, state).handles.append(handle)

    def run(self, *, snapshot: bool) -> None:
        """Remove what has expired, as far as each state's strategies go.

        Args:
            snapshot: Whether a snapshot is made of what is there afterwards.
        """
        if not self._states:
            return
        started = self._context.seconds()
        for number, state in enumerate(self._states.values(), 1):
            # Without event time nothing can have expired yet.
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
            self._look_at_all(state, cursor)
        else:
            if strategies.incremental is not None:
                self._look_by_use(state, cursor, strategies.incremental)
            if strategies.passes is not None:
                self._go_on(state, cursor, strategies.passes, has_time)
        if cursor.began is not None and cursor.encoded() != before:
            self._changes.append((key, cursor.encoded()))
        self._store.write(self._changes)
        self._changes = []

    def _look_at_all(self, state: SweptState, cursor: Cursor) -> None:
        _begin(state, cursor)
        self._look(state, cursor, lambda looked: STEP)

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
            # Around the end, but no entry is looked at twice.
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
        """Look at entries from the cursor on.

        Args:
            state: Whose entries.
            cursor: Where to begin; it is moved on.
            wanted: How many entries to look at next, given how many it were so far.
            until: Key to stop before.

        Returns:
            How many entries were looked at; elements, of a list.
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
        """Note what is to change of values; return how many were seen, and are removed."""
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
        """The same of lists; their elements are counted."""
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
    # Time that has gone back, as watermarks do on a restore, says nothing about the last pass.
    return not 0 <= state.time.now() - cursor.began < interval


def _limit(state: SweptState) -> bytes:
    """Entries have expired whose time is no later, but for those whose time is not known."""
    return time_bytes(max(state.time.now() - state.config.ttl_ms, FIRST_TIME))
