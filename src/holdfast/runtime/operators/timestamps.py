"""Gives elements their event time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.api.time import WatermarkGenerator
from holdfast.errors import EventTimeError, HoldfastError
from holdfast.runtime.exchange import appended
from holdfast.runtime.operators.base import Operator, Output, Reported, user_error
from holdfast.runtime.plan import TIME
from holdfast.types.annotations import is_typed_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.api.time import WatermarkOutput, WatermarkStrategy
    from holdfast.runtime.operators.base import Times
    from holdfast.types.stream_type import StreamType

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MILLISECOND: Final = timedelta(milliseconds=1)
_DAY_MS: Final = 86_400_000
_BOUND: Final = 2**63


class TimestampOperator(Operator):
    """Gives every element its event time; keeps the latest, and the watermarks of elements."""

    _generator: WatermarkGenerator | None = None
    """Of this epoch."""

    def _bind(self) -> Callable[..., Any]:
        strategy: WatermarkStrategy = self.plan.details
        self._generates = strategy.generator is not None
        match strategy.assigner:
            case None:
                return lambda _, before: before
            case str(column):
                return column_time(self.plan.input, column)
            case function:
                return function

    def process(
        self, elements: list[Any], keys: list[Any] | None, times: Times | None = None, side: int = 0
    ) -> Output:
        """The elements unchanged, with their event times."""
        before = times or [None] * len(elements)
        fresh: list[int] = []
        try:
            fresh.extend(map(self._call, elements, before))
            whole = set(map(type, fresh)) <= {int}
        except Exception:
            whole = False
        if not whole or (fresh and not -_BOUND <= min(fresh) <= max(fresh) < _BOUND):
            return self._one_by_one(elements, before, fresh)
        if fresh:
            self._note(max(fresh))
            if self._generates:
                self._generate(elements, fresh)
        return Output(elements, fresh)

    def _one_by_one(self, elements: list[Any], before: Times, known: list[Any]) -> Output:
        """The same if an element has no time; the error policy decides what happens to it.

        For elements whose times are `known` already, the function is not called again.
        """
        out: list[Any] = []
        times: list[int | None] = []
        for place, (element, old) in enumerate(zip(elements, before, strict=True)):
            try:
                found = known[place] if place < len(known) else self._call(element, old)
                time = self._checked(found)
            except Exception as error:
                if self.plan.policy.mode == "fail":
                    raise self._refusal(element, error) from error
                self._divert(error, element, None, out)
                times.extend([None] * (len(out) - len(times)))
            else:
                out.append(element)
                times.append(time)
                self._note(time)
                if self._generates:
                    self._generate([element], [time])
        return Output(out, times)

    def _generate(self, elements: list[Any], times: list[int]) -> None:
        """Show elements to the generator."""
        with Reported(self, "in a watermark generator"):
            if self._generator is None:
                self._generator = self._new_generator()
            on_event = self._generator.on_event
            for element, time in zip(elements, times, strict=True):
                on_event(element, time, self)

    def _new_generator(self) -> WatermarkGenerator:
        strategy: WatermarkStrategy = self.plan.details
        if isinstance(strategy.generator, str):
            return _Punctuated(column_value(self.plan.input, strategy.generator))
        assert strategy.generator is not None
        return strategy.generator()

    def emit_watermark(self, watermark: int) -> None:
        """Take a watermark of the generator."""
        if not isinstance(watermark, int) or not -_BOUND <= watermark < _BOUND:
            raise EventTimeError(
                f"the watermark is {watermark!r}; it must be a whole number of milliseconds since "
                "1970"
            )
        if self.emitted is None or watermark > self.emitted:
            self.emitted = watermark

    def finish(self) -> list[Any]:
        """Let the generator emit a watermark for the epoch, and drop it."""
        generator, self._generator = self._generator, None
        if generator is not None:
            with Reported(self, "in a watermark generator"):
                generator.on_periodic_emit(self)
        return []

    def _checked(self, time: Any) -> int:
        if isinstance(time, int) and not isinstance(time, bool) and -_BOUND <= time < _BOUND:
            return int(time)
        raise EventTimeError(
            f"the event time is {time!r}; it must be a whole number of milliseconds since 1970"
        )

    def _refusal(self, element: Any, error: Exception) -> HoldfastError:
        if isinstance(error, EventTimeError):
            return EventTimeError(f"{self.describe()}: {error}\n  row: {element!r}")
        return user_error(self.describe(), error, f"  row: {element!r}\n")

    def _note(self, time: int) -> None:
        if self.latest is None or time > self.latest:
            self.latest = time

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        raise AssertionError("timestamps are given to whole lists")


class _Punctuated(WatermarkGenerator):
    """Emits the watermarks that elements carry."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Emit the watermark of an element that carries one."""
        watermark = self._read(value)
        if watermark is not None:
            output.emit_watermark(millis(watermark))


def column_time(stream: StreamType, column: str) -> Callable[[Any, int | None], int]:
    """Function that reads the event time of an element of `stream` from one of its columns."""
    read = column_value(stream, column)
    return lambda value, _: millis(read(value))


def column_value(stream: StreamType, column: str) -> Callable[[Any], Any]:
    """Function that reads one of the columns of an element of `stream`."""
    element = stream.element
    if element is None or (isinstance(element, type) and issubclass(element, tuple)):
        return itemgetter(stream.columns.index(column))
    return itemgetter(column) if is_typed_dict(element) else attrgetter(column)


def millis(time: Any) -> int:
    """Milliseconds since 1970; a time without a zone is in UTC."""
    if isinstance(time, int):
        return time
    if isinstance(time, datetime):
        return (time - (_EPOCH if time.tzinfo is None else _EPOCH_UTC)) // _MILLISECOND
    if isinstance(time, date):
        return (time.toordinal() - _EPOCH_DAY) * _DAY_MS
    raise EventTimeError(
        f"the event time is {time!r}; filter such rows out, or give them a time, before "
        "assign_timestamps_and_watermarks"
    )


def with_time(rows: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Rows with a column of event time, made from one of their columns."""
    values = rows.column(column)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("ms"))
    elif pa.types.is_timestamp(values.type):
        # In UTC: in other zones some local times occur twice, and would be refused.
        values = pc.floor_temporal(
            values.cast(pa.timestamp(values.type.unit, values.type.tz and "UTC")), 1, "millisecond"
        )
        values = values.cast(pa.timestamp("ms", values.type.tz))
    return appended(rows, TIME, values.cast(pa.int64()))


def latest_time(rows: pa.RecordBatch, what: str) -> int | None:
    """The latest event time of rows; every row must have one."""
    times = rows.column(TIME)
    if times.null_count:
        row = rows.filter(pc.is_null(times)).slice(0, 1).to_pylist()[0]
        raise EventTimeError(
            f"{what}: the event time is null in row {row!r}; filter such rows out, or give them a "
            "time, before assign_timestamps_and_watermarks"
        )
    latest: int | None = pc.max(times).as_py()
    return latest
