"""Time to live: how long state is kept that nobody touches.

>>> from holdfast import Duration, ValueStateDescriptor
>>> config = StateTtlConfig.new_builder(Duration.of_hours(1)).update_ttl_on_read_and_write().build()
>>> seen = ValueStateDescriptor("seen", bool, ttl=config)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.options import Duration, at_least, boolean, lasting
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

TIME_AGAIN_AFTER: Final = 1000
"""Entries after which a sweep asks for the time again, unless told otherwise."""
PERIOD_MS: Final = 30 * 24 * 3_600_000
"""Longest time between the beginnings of two passes, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class IncrementalCleanup:
    """How much is looked through for every use of a state."""

    cleanup_size: int
    """Entries per access."""
    run_cleanup_for_every_record: bool = False
    """Whether as many are looked at for every record, too."""


@dataclass(frozen=True, slots=True)
class PassCleanup:
    """How state is looked through in passes, whoever uses it."""

    query_time_after_num_entries: int = TIME_AGAIN_AFTER
    """Entries after which the time is asked for again."""
    periodic_compaction_ms: int = PERIOD_MS
    """Longest time between the beginnings of two passes; 0 for no such bound."""


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """When expired entries are removed that nobody reads."""

    in_full_snapshot: bool = False
    """Whether all of them are, before each snapshot."""
    incremental: IncrementalCleanup | None = None
    compact_filter: PassCleanup | None = None
    in_background: bool = True
    """Whether they are by default, where no other strategy was asked for."""

    @property
    def passes(self) -> PassCleanup | None:
        """The passes that run: those asked for, or else the default ones; None for none."""
        if self.compact_filter is None and self.in_background and self.incremental is None:
            return PassCleanup()
        return self.compact_filter


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """How long the entries of a state live, and what becomes of them then.

    Made by `StateTtlConfig.new_builder(ttl)...build()`, under PyFlink's names.
    """

    class UpdateType(Enum):
        """What renews the time of an entry."""

        Disabled = 0
        """Nothing: the state has no time to live."""
        OnCreateAndWrite = 1
        """Writing it."""
        OnReadAndWrite = 2
        """Writing it, and reading it."""

    class StateVisibility(Enum):
        """Whether what has expired can still be read."""

        ReturnExpiredIfNotCleanedUp = 0
        """Once, if it is still there."""
        NeverReturnExpired = 1
        """Never."""

    class TtlTimeCharacteristic(Enum):
        """By what time entries grow old."""

        ProcessingTime = 0
        """The clock."""
        EventTime = 1
        """The watermark."""

    ttl_ms: int
    """An entry expires when its time is this long ago."""
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    ttl_time_characteristic: TtlTimeCharacteristic = TtlTimeCharacteristic.ProcessingTime
    cleanup_strategies: CleanupStrategies = field(default_factory=CleanupStrategies)

    @staticmethod
    def new_builder(ttl: Duration) -> StateTtlConfigBuilder:
        """A builder for entries that live for `ttl`.

        Args:
            ttl: A `Duration` or `timedelta`, a text such as "10 s", or milliseconds.

        Raises:
            ConfigurationError: It is no duration, or not at least a millisecond.
        """
        return StateTtlConfigBuilder(ttl)

    def is_enabled(self) -> bool:
        """Whether entries expire at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled


class StateTtlConfigBuilder:
    """Gathers the parts of a `StateTtlConfig`; every method but `build` returns itself."""

    def __init__(self, ttl: Duration) -> None:
        """Entries that live for `ttl`; see `StateTtlConfig.new_builder`."""
        self._ttl_ms = _parsed(lasting(1), ttl, "new_builder: ttl")
        self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
        self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
        self._time = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
        self._in_full_snapshot = False
        self._incremental: IncrementalCleanup | None = None
        self._compact_filter: PassCleanup | None = None
        self._in_background = True

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> Self:
        """What renews the time of an entry; `Disabled` for a state without time to live."""
        self._update_type = _member(StateTtlConfig.UpdateType, update_type, "set_update_type")
        return self

    def update_ttl_on_create_and_write(self) -> Self:
        """Writing an entry renews its time; the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> Self:
        """Reading an entry renews its time, too."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> Self:
        """Whether what has expired can still be read."""
        self._visibility = _member(
            StateTtlConfig.StateVisibility, state_visibility, "set_state_visibility"
        )
        return self

    def return_expired_if_not_cleaned_up(self) -> Self:
        """What has expired can be read once more, if it is still there."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> Self:
        """What has expired is as if it were not there; the default."""
        return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(
        self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
    ) -> Self:
        """By what time entries grow old."""
        self._time = _member(
            StateTtlConfig.TtlTimeCharacteristic,
            ttl_time_characteristic,
            "set_ttl_time_characteristic",
        )
        return self

    def use_processing_time(self) -> Self:
        """Entries grow old by the clock; the default."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

    def use_event_time(self) -> Self:
        """Entries grow old by the watermark; their time is that of the element at hand."""
        return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)

    def cleanup_full_snapshot(self) -> Self:
        """Remove all that has expired before each snapshot, unless snapshots are incremental."""
        self._in_full_snapshot = True
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool = False
    ) -> Self:
        """Look through the state in proportion to its use, in place of passes.

        Args:
            cleanup_size: Entries to look at for every access to the state.
            run_cleanup_for_every_record: Whether to look at as many for every record, too.
        """
        self._incremental = IncrementalCleanup(
            _parsed(at_least(1), cleanup_size, "cleanup_incrementally: cleanup_size"),
            _parsed(
                boolean,
                run_cleanup_for_every_record,
                "cleanup_incrementally: run_cleanup_for_every_record",
            ),
        )
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int = TIME_AGAIN_AFTER,
        periodic_compaction_time: Duration = PERIOD_MS,
    ) -> Self:
        """Look through the state in passes, on either backend; see `PassCleanup`.

        Args:
            query_time_after_num_entries: Entries after which the time is asked for again.
            periodic_compaction_time: Longest time between two passes; 0 for no such bound.
        """
        method = "cleanup_in_rocksdb_compact_filter"
        self._compact_filter = PassCleanup(
            _parsed(
                at_least(1),
                query_time_after_num_entries,
                f"{method}: query_time_after_num_entries",
            ),
            _parsed(lasting(0), periodic_compaction_time, f"{method}: periodic_compaction_time"),
        )
        return self

    def disable_cleanup_in_background(self) -> Self:
        """Remove only what is read, unless another strategy is asked for."""
        self._in_background = False
        return self

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return StateTtlConfig(
            self._ttl_ms,
            self._update_type,
            self._visibility,
            self._time,
            CleanupStrategies(
                self._in_full_snapshot,
                self._incremental,
                self._compact_filter,
                self._in_background,
            ),
        )


def _parsed(parse: Any, value: object, what: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}, not {value!r}") from error


def _member(kind: type[Any], value: object, method: str) -> Any:
    if not isinstance(value, kind):
        names = ", ".join(member.name for member in kind)
        raise ConfigurationError(
            f"{method}: one of {kind.__qualname__}.{{{names}}} is wanted, not {value!r}"
        )
    return value
