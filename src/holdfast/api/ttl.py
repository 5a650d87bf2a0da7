"""Time to live: how long state is kept that nobody touches.

>>> from holdfast import ValueStateDescriptor
>>> config = StateTtlConfig("1 h", update_type="on_read_and_write")
>>> seen = ValueStateDescriptor("seen", bool, ttl=config)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.options import DurationLike, at_least, boolean, lasting
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


@dataclass(frozen=True, slots=True, init=False)
class StateTtlConfig:
    """How long the entries of a state live, and what becomes of them then.

    `StateTtlConfig("1 h")` does for most states. `StateTtlConfig.new_builder(ttl)...build()` is
    the same under PyFlink's names.
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
            update_type: What renews the time of an entry, or its name: "on_read_and_write".
            state_visibility: Whether expired entries can be read, or its name.
            ttl_time_characteristic: "processing_time" or "event_time".
            cleanup_strategies: When expired entries are removed that nobody reads.

        Raises:
            ConfigurationError: An argument has no valid value; the message says which.
        """
        kind = type(self)
        set_field = partial(object.__setattr__, self)
        set_field("ttl_ms", _parsed(lasting(1), ttl, "StateTtlConfig: ttl"))
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
            ConfigurationError: It is no duration, or not at least a millisecond.
        """
        return StateTtlConfigBuilder(ttl)

    def is_enabled(self) -> bool:
        """Whether entries expire at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled


class StateTtlConfigBuilder:
    """Gathers the parts of a `StateTtlConfig`; every method but `build` returns itself."""

    def __init__(self, ttl: DurationLike) -> None:
        """Entries that live for `ttl`; see `StateTtlConfig.new_builder`."""
        self._ttl_ms = _parsed(lasting(1), ttl, "new_builder: ttl")
        self._parts: dict[str, Any] = {}
        self._cleanup = CleanupStrategies()

    def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> Self:
        """What renews the time of an entry; `Disabled` for a state without time to live."""
        self._parts["update_type"] = _member(
            StateTtlConfig.UpdateType, update_type, "set_update_type"
        )
        return self

    def update_ttl_on_create_and_write(self) -> Self:
        """Writing an entry renews its time; the default."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> Self:
        """Reading an entry renews its time, too."""
        return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> Self:
        """Whether what has expired can still be read."""
        self._parts["state_visibility"] = _member(
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
        self._parts["ttl_time_characteristic"] = _member(
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
        self._cleanup = replace(self._cleanup, in_full_snapshot=True)
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool = False
    ) -> Self:
        """Look through the state in proportion to its use, in place of passes.

        Args:
            cleanup_size: Entries to look at for every access to the state.
            run_cleanup_for_every_record: Whether to look at as many for every record, too.
        """
        incremental = IncrementalCleanup(
            _parsed(at_least(1), cleanup_size, "cleanup_incrementally: cleanup_size"),
            _parsed(
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
        """Look through the state in passes, on either backend; see `PassCleanup`.

        Args:
            query_time_after_num_entries: Entries after which the time is asked for again.
            periodic_compaction_time: Longest time between two passes; 0 for no such bound.
        """
        method = "cleanup_in_rocksdb_compact_filter"
        compact_filter = PassCleanup(
            _parsed(
                at_least(1),
                query_time_after_num_entries,
                f"{method}: query_time_after_num_entries",
            ),
            _parsed(lasting(0), periodic_compaction_time, f"{method}: periodic_compaction_time"),
        )
        self._cleanup = replace(self._cleanup, compact_filter=compact_filter)
        return self

    def disable_cleanup_in_background(self) -> Self:
        """Remove only what is read, unless another strategy is asked for."""
        self._cleanup = replace(self._cleanup, in_background=False)
        return self

    def build(self) -> StateTtlConfig:
        """The configuration."""
        return StateTtlConfig(self._ttl_ms, cleanup_strategies=self._cleanup, **self._parts)


def _parsed(parse: Any, value: object, what: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}, not {value!r}") from error


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
        f"{what}: one of {kind.__qualname__}.{{{names}}} is wanted, not {value!r}"
    )
