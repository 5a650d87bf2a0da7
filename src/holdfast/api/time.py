"""Event time: timestamps of elements, and watermarks."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from holdfast.config import options
from holdfast.errors import ConfigurationError, JobGraphError

if TYPE_CHECKING:
    from holdfast.types.stream_type import StreamType


MIN_WATERMARK: Final = -(2**63)
"""The watermark before the first element."""

MAX_WATERMARK: Final = 2**63 - 1
"""The watermark at the end of a bounded stream."""


class TimeDomain(Enum):
    """Which time fires a timer."""

    EVENT_TIME = "event time"
    """The watermark."""
    PROCESSING_TIME = "processing time"
    """The clock."""


class Duration(timedelta):
    """A length of time, under Flink's names. A `timedelta` or "10 s" works as well."""

    @classmethod
    def of_days(cls, days: float) -> Duration:
        """A number of days."""
        return cls(days=days)

    @classmethod
    def of_hours(cls, hours: float) -> Duration:
        """A number of hours."""
        return cls(hours=hours)

    @classmethod
    def of_minutes(cls, minutes: float) -> Duration:
        """A number of minutes."""
        return cls(minutes=minutes)

    @classmethod
    def of_seconds(cls, seconds: float) -> Duration:
        """A number of seconds."""
        return cls(seconds=seconds)

    @classmethod
    def of_millis(cls, millis: int) -> Duration:
        """A number of milliseconds."""
        return cls(milliseconds=millis)


class TimestampAssigner(ABC):
    """Extracts the event time of an element."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int | None) -> int:
        """Event time of `value` in milliseconds; `record_timestamp` is its previous one."""


class WatermarkOutput(Protocol):
    """Takes the watermarks of a `WatermarkGenerator`."""

    def emit_watermark(self, watermark: int) -> None:
        """Say that no more elements up to this time, in milliseconds, are expected."""


class WatermarkGenerator(ABC):
    """Decides from elements how far event time has advanced.

    It sees the elements of one task in one epoch. What it remembers is not state.
    """

    @abstractmethod
    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Called for every element, with its event time; may emit a watermark."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called when a task has seen its elements of an epoch; may emit a watermark."""
        return


Generator = str | Callable[[], WatermarkGenerator]
"""A column with watermarks, or a function that makes a generator."""

Assigner = str | Callable[[Any, int | None], int]
"""A column, or a function of an element and its previous event time."""


@dataclass(frozen=True)
class WatermarkAlignment:
    """How far a source may be ahead of the others in its group."""

    group: str
    max_drift_ms: int


@dataclass(frozen=True)
class WatermarkStrategy:
    """Where event times come from, and how far elements may be out of order.

    Made by one of the `for_...` methods or `no_watermarks`, and refined by those that
    begin with `with_`, each of which returns a new strategy.
    """

    out_of_orderness_ms: int | None
    """How far elements may lag behind the latest one; None for no watermarks."""
    assigner: Assigner | None = None
    idle_after_ms: int | None = None
    """Time without elements after which a source no longer holds the watermark back."""
    generator: Generator | None = None
    """Where watermarks come from, if not from the latest element."""
    alignment: WatermarkAlignment | None = None
    """The group of sources that wait for each other."""

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Elements arrive in the order of their event times."""
        return WatermarkStrategy(0)

    @staticmethod
    def for_bounded_out_of_orderness(
        max_out_of_orderness: options.DurationLike,
    ) -> WatermarkStrategy:
        """Elements lag behind the latest one by at most `max_out_of_orderness`."""
        method = "for_bounded_out_of_orderness"
        return WatermarkStrategy(options.argument(options.lasting(0), max_out_of_orderness, method))

    @staticmethod
    def for_generator(make_generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks come from a generator of your own.

        Args:
            make_generator: Makes a generator for a task, such as its class.
        """
        if not callable(make_generator) or isinstance(make_generator, WatermarkGenerator):
            raise ConfigurationError(
                "for_generator takes a class or function that makes a WatermarkGenerator, since "
                f"every task has its own, not {make_generator!r}"
            )
        return WatermarkStrategy(None, generator=make_generator)

    @staticmethod
    def punctuated(column: str) -> WatermarkStrategy:
        """Some elements carry a watermark in a column, which is null in all others."""
        if not isinstance(column, str) or not column:
            raise ConfigurationError(f"punctuated takes the name of a column, not {column!r}")
        return WatermarkStrategy(None, generator=column)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Elements have timestamps, but the watermark does not advance until the end."""
        return WatermarkStrategy(None)

    def with_timestamp_assigner(self, assigner: TimestampAssigner | Assigner) -> WatermarkStrategy:
        """Take event time from a column, or from a function of the element.

        A column is read in the JVM where the stream comes straight from a source. It holds a
        timestamp, a date, or a whole number of milliseconds since 1970. A function is given
        the element and its previous event time, or None, and returns milliseconds.
        """
        if isinstance(assigner, TimestampAssigner):
            return replace(self, assigner=assigner.extract_timestamp)
        if not (isinstance(assigner, str) and assigner) and not callable(assigner):
            raise ConfigurationError(
                "with_timestamp_assigner takes the name of a column, a TimestampAssigner or a "
                f"function (value, record_timestamp) -> milliseconds, not {assigner!r}"
            )
        return replace(self, assigner=assigner)

    def with_idleness(self, idle_timeout: options.DurationLike) -> WatermarkStrategy:
        """Ignore a source in the watermark after `idle_timeout` without elements."""
        idle_after_ms = options.argument(options.lasting(1), idle_timeout, "with_idleness")
        return replace(self, idle_after_ms=idle_after_ms)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: options.DurationLike,
        update_interval: options.DurationLike | None = None,
    ) -> WatermarkStrategy:
        """Let the source wait while its watermark is too far ahead of others.

        The stream must come from one source that Holdfast can pause: a collection, a generator
        or a `ReplayableSource`. Watermarks are compared after every epoch.

        Args:
            watermark_group: Sources with the same group wait for each other.
            max_allowed_watermark_drift: How far its watermark may be ahead of the group's least.
            update_interval: Accepted for programs from Flink; it changes nothing.
        """
        method = "with_watermark_alignment"
        if not isinstance(watermark_group, str) or not watermark_group:
            raise ConfigurationError(f"{method} takes the name of a group, not {watermark_group!r}")
        if self.out_of_orderness_ms is None and self.generator is None:
            raise ConfigurationError(
                f"{method}: a strategy without watermarks has nothing that others could wait for; "
                "use for_bounded_out_of_orderness"
            )
        if update_interval is not None:
            options.argument(options.lasting(1), update_interval, method)
        drift_ms = options.argument(options.lasting(0), max_allowed_watermark_drift, method)
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift_ms))


_METHOD = "assign_timestamps_and_watermarks"


def check_strategy(strategy: object, stream: StreamType, *, timed: bool) -> None:
    """Check that a strategy fits the stream.

    Raises:
        JobGraphError: It is not a strategy, or the stream lacks its timestamps.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise JobGraphError(f"{_METHOD} takes a WatermarkStrategy, not {type(strategy).__name__}")
    if strategy.assigner is None and not timed:
        raise JobGraphError(
            f"{_METHOD}: the strategy has no timestamp assigner, and the stream has no timestamps "
            'yet; add .with_timestamp_assigner("column"), or a function'
        )
    for column in (strategy.assigner, strategy.generator):
        if isinstance(column, str):
            _check_column(column, stream)


def _check_column(column: str, stream: StreamType) -> None:
    names = list(stream.columns)
    if stream.kind != "row" or column not in names:
        near = difflib.get_close_matches(column, names, n=1) if stream.kind == "row" else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise JobGraphError(
            f"{_METHOD}: there is no column {column!r} in a stream of {stream}{hint}"
        )
    kind = stream.schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
        raise JobGraphError(
            f"{_METHOD}: column {column!r} is of type {kind}, which is not a time; use a "
            "timestamp, a date, a whole number of milliseconds since 1970, or a function"
        )
