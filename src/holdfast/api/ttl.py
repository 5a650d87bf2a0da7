"""Time to live: how long unused state is kept.

>>> from holdfast import ValueStateDescriptor
>>> config = StateTtlConfig("1 h", update_type="on_read_and_write")
>>> seen = ValueStateDescriptor("seen", bool, ttl=config)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.options import DurationLike, argument, at_least, boolean, lasting
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

TIME_AGAIN_AFTER: Final = 1000
"""Default number of entries after which a sweep reads the time again."""
PERIOD_MS: Final = 30 * 24 * 3_600_000
"""Default for the longest time between the starts of two passes."""


@dataclass(frozen=True, slots=True)
class IncrementalCleanup:
    """How many entries are checked on every use of a state."""

    cleanup_size: int
    """Entries per access."""
    run_cleanup_for_every_record: bool = False
    """Whether the same number is also checked for every record."""


@dataclass(frozen=True, slots=True)
class PassCleanup:
    """How state is checked in passes, independent of its use."""

    query_time_after_num_entries: int = TIME_AGAIN_AFTER
    """Entries after which the time is read again."""
    periodic_compaction_ms: int = PERIOD_MS
    """Longest time between the starts of two passes; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """When expired entries are removed that are never read."""

    in_full_snapshot: bool = False
    """Whether all of them are removed before each snapshot."""
    incremental: IncrementalCleanup | None = None
    compact_filter: PassCleanup | None = None
    in_background: bool = True
    """Whether default passes run if no other strategy is set."""

    @property
    def passes(self) -> PassCleanup | None:
        """The passes that run: the configured or the default ones, or None."""
        if self.compact_filter is None and self.in_background and self.incremental is None:
            return PassCleanup()
        return self.compact_filter


@dataclass(frozen=True, slots=True, init=False)
class StateTtlConfig:
    """How long the entries of a state live, and when they are removed.

    `StateTtlConfig("1 h")` does for most states. `StateTtlConfig.new_builder(ttl)...build()` is
    the same under PyFlink's names.
    """

    class UpdateType(Enum):
        """Which accesses renew the time of an entry."""

        Disabled = 0
        """None: the state has no time to live."""
        OnCreateAndWrite = 1
        """Writes."""
        OnReadAndWrite = 2
        """Reads and writes."""

    class StateVisibility(Enum):
        """Whether expired entries can still be read."""

        ReturnExpiredIfNotCleanedUp = 0
        """Once, if the entry has not been removed yet."""
        NeverReturnExpired = 1
        """Never."""

    class TtlTimeCharacteristic(Enum):
        """Which time entries age by."""

        ProcessingTime = 0
        """The clock."""
        EventTime = 1
        """The watermark."""

    ttl_ms: int
    """An entry expires when its time is this long ago."""
    update_type: UpdateType
    state_visibility: StateVisibility
    ttl_time_characteristic: TtlTimeCharacteristic
    cleanup_strategies: CleanupStrategies

    def __init__(
        self,
        ttl: DurationLike,
        *,
        update_type: UpdateType | str = UpdateType.OnCreateAndWrite,
        state_visibility: StateVisibility | str = StateVisibility.NeverReturnExpired,
        ttl_time_characteristic: TtlTimeCharacteristic | str = TtlTimeCharacteristic.ProcessingTime,
        cleanup_strategies: CleanupStrategies | None = None,
    ) -> None:
        """Entries that live for `ttl`.

        Args:
            ttl: A text such as "10 s", a `Duration` or `timedelta`, or milliseconds.
            update_type: Which accesses renew the time of an entry: "on_read_and_write", or a member
                of `UpdateType`.
            state_visibility: Whether expired entries can still be read.
            ttl_time_characteristic: "processing_time" or "event_time".
            cleanup_strategies: When expired entries are removed that are never read.

        Raises:
            ConfigurationError: An argument has no valid value; the message says which.
        """
        kind = type(self)
        set_field = partial(object.__setattr__, self)
        set_field("ttl_ms", argument(lasting(1), ttl, "StateTtlConfig: ttl"))
        set_field("update_type", _member(kind.UpdateType, update_type, "update_type"))
        set_field(
            "state_visibility", _member(kind.StateVisibility, state_visibility, "state_visibility")
        )
        set_field(
            "ttl_time_characteristic",
            _member(kind.TtlTimeCharacteristic, ttl_time_characteristic, "ttl_time_characteristic"),
        )
        set_field("cleanup_strategies", cleanup_strategies or CleanupStrategies())

    @staticmethod
    def new_builder(ttl: DurationLike) -> StateTtlConfigBuilder:
        """A builder for entries that live for `ttl`.

        Args:
            ttl: A `Duration` or `timedelta`, a text such as "10 s", or milliseconds.

        Raises:
            ConfigurationError: `ttl` is not a duration of at least one millisecond.
        """
        return StateTtlConfigBuilder(ttl)

    def is_enabled(self) -> bool:
        """Whether entries expire at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled


class StateTtlConfigBuilder:
    """Builds a `StateTtlConfig`; every method except `build` returns the builder."""

    def __init__(self, ttl: DurationLike) -> None:
        """Entries that live for `ttl`; see `StateTtlConfig.new_builder`."""
        self._ttl_ms = argument(lasting(1), ttl, "new_builder: ttl")
        self._parts: dict[str, Any] = {}
        self._cleanup = CleanupStrategies()

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> Self:
        """Set which accesses renew the time of an entry; `Disabled` for no time to live."""
        return self._set("update_type", StateTtlConfig.UpdateType, update_type)

    def update_ttl_on_create_and_write(self) -> Self:
        """Renew the time of an entry on writes; the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> Self:
        """Renew the time of an entry on reads and writes."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> Self:
        """Set whether expired entries can still be read."""
        return self._set("state_visibility", StateTtlConfig.StateVisibility, state_visibility)

    def return_expired_if_not_cleaned_up(self) -> Self:
        """Let an expired entry be read once more if it has not been removed yet."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> Self:
        """Never return expired entries; the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> Self:
        """Set which time entries age by."""
        kind = StateTtlConfig.TtlTimeCharacteristic
        return self._set("ttl_time_characteristic", kind, ttl_time_characteristic)

    def use_processing_time(self) -> Self:
        """Let entries age by the clock; the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def use_event_time(self) -> Self:
        """Let entries age by the watermark; their time is that of the current element."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)

    def cleanup_full_snapshot(self) -> Self:
        """Remove all expired entries before each snapshot, unless snapshots are incremental."""
        self._cleanup = replace(self._cleanup, in_full_snapshot=True)
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool = False
    ) -> Self:
        """Check entries in proportion to the use of the state, instead of in passes.

        Args:
            cleanup_size: Entries to check on every access to the state.
            run_cleanup_for_every_record: Whether to check the same number for every record.
        """
        incremental = IncrementalCleanup(
            argument(at_least(1), cleanup_size, "cleanup_incrementally: cleanup_size"),
            argument(
                boolean,
                run_cleanup_for_every_record,
                "cleanup_incrementally: run_cleanup_for_every_record",
            ),
        )
        self._cleanup = replace(self._cleanup, incremental=incremental)
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int = TIME_AGAIN_AFTER,
        periodic_compaction_time: DurationLike = PERIOD_MS,
    ) -> Self:
        """Check the state in passes, on either backend; see `PassCleanup`.

        Args:
            query_time_after_num_entries: Entries after which the time is read again.
            periodic_compaction_time: Longest time between two passes; 0 for no limit.
        """
        method = "cleanup_in_rocksdb_compact_filter"
        compact_filter = PassCleanup(
            argument(
                at_least(1),
                query_time_after_num_entries,
                f"{method}: query_time_after_num_entries",
            ),
            argument(lasting(0), periodic_compaction_time, f"{method}: periodic_compaction_time"),
        )
        self._cleanup = replace(self._cleanup, compact_filter=compact_filter)
        return self

    def disable_cleanup_in_background(self) -> Self:
        """Remove expired entries only on access, unless another strategy is set."""
        self._cleanup = replace(self._cleanup, in_background=False)
        return self

    def _set(self, name: str, kind: type[Enum], value: object) -> Self:
        self._parts[name] = _member(kind, value, f"set_{name}")
        return self

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return StateTtlConfig(self._ttl_ms, cleanup_strategies=self._cleanup, **self._parts)


def _member(kind: type[Any], value: object, what: str) -> Any:
    """A member of an enum, or the member of that name, however it is written."""
    if isinstance(value, kind):
        return value
    name = value.replace("_", "").lower() if isinstance(value, str) else None
    for member in kind:
        if member.name.lower() == name:
            return member
    names = ", ".join(member.name for member in kind)
    raise ConfigurationError(
        f"{what}: expected one of {kind.__qualname__}.{{{names}}}, got {value!r}"
    )
