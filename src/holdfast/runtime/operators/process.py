"""The general operator, and how its timers fire."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final

from holdfast.api.time import TimeDomain
from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.runtime.context import TimerContext
from holdfast.runtime.operators.base import (
    Operator,
    Output,
    Undone,
    always_iterable,
    short,
    user_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.runtime.operators.base import Ends, Times
    from holdfast.state.timers.layout import Timer

PIECE: Final = 10_000
"""Outputs of timers that are collected before they are passed on."""


class ProcessOperator(Operator):
    """The general operator, keyed or not."""

    _firing_in: ClassVar[str] = "in on_timer()"
    """The method that timers call, for messages."""

    def _bind(self) -> Callable[..., Any]:
        return always_iterable(self._function.process_element)

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        context = self._element_context
        for current.key, element in zip(keys, elements, strict=False):
            for output in call(element, context):
                append(output)

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        call, append, current = self._call, out.append, self.current
        context, end = self._element_context, ends.append
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            for output in call(element, context):
                append(output)
            end(len(out))

    def fire(self, domain: TimeDomain, due: Iterable[Timer]) -> Iterator[Output]:
        """Fire timers; their output, in pieces."""
        fire_one = self._firing(domain)
        timed = domain is TimeDomain.EVENT_TIME
        guarded = self.plan.policy.mode != "fail"
        out: list[Any] = []
        times: list[int | None] = []
        current = self.current
        timer: Timer | None = None
        try:
            for timer in due:
                current.key = timer.key
                time = timer.time if timed else None
                if guarded:
                    with Undone(self, timer.key, timer, out):
                        time = fire_one(timer, out)
                else:
                    time = fire_one(timer, out)
                times.extend(repeat(time, len(out) - len(times)))
                if len(out) >= PIECE:
                    yield Output(out, times)
                    out, times = [], []
        except UserFunctionError:
            raise
        except HoldfastError as error:
            raise self._located_timer(error, timer) from error
        except Exception as error:
            at = None if timer is None else timer.time
            details = f"  key: {short(current.key)}\n  timer: {at}, {domain.value}\n"
            where = f"{self.describe()}, {self._firing_in}"
            raise user_error(where, error, details) from error
        finally:
            current.end_batch()
        if out:
            yield Output(out, times)

    def _firing(self, domain: TimeDomain) -> Callable[[Timer, list[Any]], int | None]:
        """Function that fires one timer: it adds the output, and returns its event time."""
        context = self._timer_context(domain)
        call = always_iterable(self._function.on_timer)
        timed = domain is TimeDomain.EVENT_TIME

        def fire_one(timer: Timer, out: list[Any]) -> int | None:
            context.time = timer.time
            out.extend(call(timer.time, context))
            return timer.time if timed else None

        return fire_one

    def _located_timer(self, error: HoldfastError, timer: Timer | None) -> HoldfastError:
        return type(error)(
            f"{self.describe()}, {self._firing_in}: {error}\n"
            f"  key: {short(self.current.key)}\n"
            f"  timer: {None if timer is None else timer.time}"
        )

    def _timer_context(self, domain: TimeDomain) -> TimerContext:
        """The context for `on_timer`."""
        return TimerContext(self.current, self._element_context.timer_service(), domain)
