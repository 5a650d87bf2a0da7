"""The window operator: keyed state and timers, and nothing else.

The contents of a window, the states of its trigger and of its function, and its timers are
stored under its key and its bytes. An element is added to each of its windows, and each
window's trigger is called. A timer at the end of a window and its allowed lateness removes
all its state.

Windows of one length that fire at their end have a fast path: see `runtime/windows/fast_path.py`.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from holdfast.api.descriptors import ValueStateDescriptor
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK, TimeDomain
from holdfast.api.windows.assigners import MergingWindowAssigner
from holdfast.api.windows.spec import Caller
from holdfast.errors import StateAccessError
from holdfast.runtime.context import LATE_DROPPED, SubtaskTimers
from holdfast.runtime.operators.base import Undone
from holdfast.runtime.operators.process import ProcessOperator
from holdfast.runtime.windows.calls import window_call
from holdfast.runtime.windows.contents import FoldedContents, TimedContents, contents_of
from holdfast.runtime.windows.contexts import (
    AssignerContext,
    FunctionContext,
    TimeContext,
    WindowTriggerContext,
)
from holdfast.runtime.windows.fast_path import (
    FastPathWindows,
    at_the_end_of_time,
    has_fast_path,
    without_time,
)
from holdfast.runtime.windows.merging import MergingWindows, ScopeUndo
from holdfast.state.namespaces import merge_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import CodeType

    from holdfast.api.windows.spec import Windowing
    from holdfast.api.windows.triggers import TriggerResult
    from holdfast.runtime.operators.base import Ends, Output, Times
    from holdfast.runtime.plan import EpochPlan
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.timers.layout import Timer
    from holdfast.state.timers.table import TimerTable

KEPT_LATE: Final = "window-kept-late"
"""Name of a state without entries: stores that have it may hold windows that have fired."""
THE_KEY: Final = 0
"""Key of all elements of a stream that is not keyed."""
WINDOWS_KNOWN: Final = 100_000
"""Most windows to keep in memory as objects."""
_NO_UNDOING: Final = nullcontext()


class WindowOperator(ProcessOperator):
    """Adds elements to windows, and calls a function when they fire."""

    _firing_in: ClassVar[str] = "firing a window"

    def _bind(self) -> Callable[..., Any]:
        windowing: Windowing = self.plan.details
        self._windowing = windowing
        self._keyed = self.plan.key is not None
        backend = self._keyed_state()
        timers = self._element_context.timer_service()
        assert isinstance(timers, SubtaskTimers)
        self._timers = timers
        self._event_time = windowing.assigner.is_event_time()
        self._lateness = windowing.allowed_lateness_ms
        self._held = backend.namespaced()
        """Scope of the contents."""
        self._own = backend.namespaced()
        """Scope of the states of triggers and functions."""
        self._contents = contents_of(windowing, backend, self._held)
        self._open: MergingWindows | None = None
        if isinstance(windowing.assigner, MergingWindowAssigner):
            self._open = MergingWindows(windowing.assigner, backend)
        self._undo = ScopeUndo()
        self._guarded = self.plan.policy.mode != "fail"
        self._time_context = TimeContext(timers)
        self._assigner_context = AssignerContext(timers)
        self._trigger_context = WindowTriggerContext(
            *(timers, backend, self._own, self._enter_own, self.context.get_metrics_group())
        )
        self._function_context = FunctionContext(
            timers, backend, None if windowing.merges else self._own
        )
        processes = windowing.caller is Caller.PROCESS
        self._call_window = window_call(
            windowing, self._function, self._function_context, keyed=self._keyed
        )
        self._clear_function = self._function.clear if processes else None
        self._dropped = self.context.get_metrics_group().counter(LATE_DROPPED)
        self._window_times: list[int | None] = []
        """Event times of the output for the current elements."""
        self._windows: dict[bytes, Any] = {}
        self._side: int | None = None
        """Input of the current elements; None if there is only one."""
        self._quick: FastPathWindows | None = None
        may_have_fired = self._may_have_fired(backend)
        if has_fast_path(windowing) and not self._guarded:
            self._quick = FastPathWindows(
                *(windowing, self._contents, self._held, self.current, timers),
                may_have_fired=may_have_fired,
            )
        return self._add

    @override
    def begin(self, epoch: EpochPlan | None, attempt_id: int, *, own_state: bool) -> None:
        super().begin(epoch, attempt_id, own_state=own_state)
        if self.is_open:
            # As the clock may go back, it is not held back for longer than an epoch.
            self._assigner_context.fired = MIN_WATERMARK
            if self._quick is not None:
                self._quick.forget()

    def _may_have_fired(self, backend: KeyedStateBackend) -> bool:
        """Whether windows are kept after they have fired, or once were under this uid."""
        if self._lateness and self._event_time and self._open is None:
            backend.register(ValueStateDescriptor(KEPT_LATE, bool))
        return backend.knows(KEPT_LATE)

    @override
    def process(
        self, elements: list[Any], keys: list[Any] | None, times: Times | None = None, side: int = 0
    ) -> Output:
        self._window_times = []
        self._side = None if self._windowing.second is None else side
        if not self._keyed:
            # The caller keeps caches within bounds where there are keys.
            self._keyed_state().evict_if_full()
            keys = [THE_KEY] * len(elements)
        return super().process(elements, keys, times, side)

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        current, context, add = self.current, self._element_context, self._add
        if self._quick is not None and not self._event_time and len(elements) > 1:
            self._run_quickly(elements, list(keys), None, out)
            return
        for current.key, element in zip(keys, elements, strict=False):
            add(element, context.time, out)

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        if self._quick is not None:
            self._run_quickly(elements, list(keys), times, out)
            return
        current, context, add = self.current, self._element_context, self._add
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            add(element, context.time, out)

    def _run_quickly(
        self, elements: list[Any], keys: list[Any], times: Times | None, out: list[Any]
    ) -> None:
        """The fast path; elements that cannot use it take the general path, in order."""
        assert self._quick is not None
        values: Any = elements if self._side is None else list(zip(repeat(self._side), elements))
        context, current = self._element_context, self.current
        start = 0
        slow = self._quick.prepare(times, len(elements), self._assigner_context)
        for place in [*slow, len(elements)]:
            self._quick.add(values, keys, start, place)
            if place < len(elements):
                element = elements[place]
                current.key = keys[place]
                context.time = None if times is None else times[place]
                self._add(element, context.time, out)
            start = place + 1

    def _loops(self) -> set[CodeType]:
        return super()._loops() | {type(self)._run_quickly.__code__, *FastPathWindows.loops()}

    def _add(self, element: Any, time: int | None, out: list[Any]) -> None:
        """Add an element to its windows, and call their triggers."""
        if self._event_time:
            if time is None:
                raise without_time()
            if time == MAX_WATERMARK:
                raise at_the_end_of_time()
        value = element if self._side is None else (self._side, element)
        handled = False
        trigger, times = self._windowing.trigger, self._window_times
        windows = self._windowing.assigner.assign_windows(element, time, self._assigner_context)
        for window in windows:
            place = window.to_bytes()
            if self._open is not None:
                window, place = self._open.add(window, self._merge)
            if self._is_over(window):
                if self._open is not None:
                    self._open.retire(window.to_bytes())
                continue
            handled = True
            self._enter(window.to_bytes(), place)
            self._contents.add(value, time)
            result = trigger.on_element(element, time, window, self._trigger_context)
            self._follow(result, window, out)
            times.extend(repeat(window.max_timestamp(), len(out) - len(times)))
            self._set_cleanup(window)
        if not handled and self._is_late(time):
            self._give_late(element, time, out)

    def _follow(self, result: TriggerResult, window: Any, out: list[Any]) -> None:
        """Carry out the result of a trigger; the window is entered."""
        if result.is_fire:
            self._emit(window, out)
        if result.is_purge:
            self._contents.clear()

    def _emit(self, window: Any, out: list[Any]) -> None:
        self._function_context.at_hand = window
        contents = self._contents
        key = self.current.key
        if isinstance(contents, TimedContents):
            self._emit_evicting(contents, key, window, out)
        elif (elements := contents.get()) is not None:
            out.extend(self._call_window(key, window, elements))

    def _emit_evicting(
        self, contents: TimedContents, key: Any, window: Any, out: list[Any]
    ) -> None:
        evictor = self._windowing.evictor
        assert evictor is not None
        elements = contents.timestamped()
        if not elements:
            return
        before = len(elements)
        evictor.evict_before(elements, len(elements), window, self._time_context)
        out.extend(self._call_window(key, window, [one.value for one in elements]))
        evictor.evict_after(elements, len(elements), window, self._time_context)
        if len(elements) != before:
            contents.keep(elements)

    @override
    def fire(self, domain: TimeDomain, due: Iterable[Timer]) -> Iterator[Output]:
        if self._quick is not None:
            self._quick.forget()
        event = domain is TimeDomain.EVENT_TIME
        table = self._timers.event() if event else self._timers.processing()
        table.announce = self._announce if event else self._announce_by_clock
        return super().fire(domain, due)

    def _announce_by_clock(self, timers: list[Timer]) -> None:
        # Sessions do not fire twice: a window of the same bounds does not come again.
        if timers and self._open is None:
            context = self._assigner_context
            context.fired = max(context.fired, timers[-1].time)
        self._announce(timers)

    def _announce(self, timers: list[Timer]) -> None:
        if self._open is None:
            self._held.current.start_batch([(timer.key, timer.namespace) for timer in timers])

    def _firing(self, domain: TimeDomain) -> Callable[[Timer, list[Any]], int | None]:
        folded = self._contents if isinstance(self._contents, FoldedContents) else None
        if self._quick is not None and folded is not None and self._clear_function is None:
            return self._firing_folded(folded, domain)
        event = domain is TimeDomain.EVENT_TIME
        trigger, context = self._windowing.trigger, self._trigger_context
        ask = trigger.on_event_time if event else trigger.on_processing_time
        cleans = event == self._event_time
        plain = self._quick is not None
        if plain and not cleans:
            return _fire_nothing

        def fire_one(timer: Timer, out: list[Any]) -> int | None:
            own = timer.namespace
            place = own if self._open is None else self._open.contents_of(own)
            if place is None:
                # Its window was merged or is gone: a trigger has not deleted its timer.
                return None
            window = self._window(own)
            with self._undoing(timer, out):
                self._enter(own, place)
                if plain:
                    if timer.time == window.max_timestamp():
                        self._emit(window, out)
                else:
                    self._follow(ask(timer.time, window, context), window, out)
            # A later timer comes from a run in which more lateness was allowed.
            if cleans and timer.time >= self._cleanup_time(window):
                self._contents.clear()
                if self._open is not None:
                    self._open.retire(own)
                # A window whose function has raised ends as well.
                with self._undoing(timer, out):
                    self._enter(own, place)
                    self._clear(window, plain=plain)
            return window.max_timestamp()  # type: ignore[no-any-return]

        return fire_one

    def _firing_folded(
        self, contents: FoldedContents, domain: TimeDomain
    ) -> Callable[[Timer, list[Any]], int | None]:
        """The same for windows on the fast path, which hold one value each."""
        if (domain is TimeDomain.EVENT_TIME) != self._event_time:
            return _fire_nothing
        get, clear, call = contents.get, contents.clear, self._call_window
        scoped, context = self._held.current, self._function_context
        known: dict[bytes, tuple[Any, int, int]] = {}

        def fire_one(timer: Timer, out: list[Any]) -> int:
            time, key, own = timer
            found = known.get(own)
            if found is None:
                window = self._window(own)
                end, cleanup = window.max_timestamp(), self._cleanup_time(window)
                found = known[own] = (window, end, cleanup)
            window, end, cleanup = found
            scoped.key = (key, own)
            if time == end:
                self._own.current.key = scoped.key
                context.at_hand = window
                elements = get()
                if elements is not None:
                    out.extend(call(key, window, elements))
            if time >= cleanup:
                clear()
            return end

        return fire_one

    def _undoing(self, timer: Timer, out: list[Any]) -> AbstractContextManager[object]:
        """Undoes all changes of a timer that raises, under the error policy."""
        return Undone(self, timer.key, timer, out) if self._guarded else _NO_UNDOING

    def _window(self, data: bytes) -> Any:
        window = self._windows.get(data)
        if window is None:
            if len(self._windows) >= WINDOWS_KNOWN:
                self._windows.clear()
            window = self._windowing.assigner.window_type.from_bytes(data)
            self._windows[data] = window
        return window

    def _clear(self, window: Any, *, plain: bool) -> None:
        """Let trigger and function clear their states of a window, which is entered."""
        if not plain:
            self._windowing.trigger.clear(window, self._trigger_context)
        if self._clear_function is not None:
            self._function_context.at_hand = window
            self._clear_function(self._function_context)

    def _merge(self, window: Any, merged: list[Any], place: bytes, others: list[bytes]) -> None:
        """Replace windows by the window that they were merged into."""
        if self._is_over(window):
            raise StateAccessError(
                f"{window!r}, made by merging windows, ends before the watermark: a merging "
                "assigner must not make windows end earlier"
            )
        key = self.current.key
        trigger, context = self._windowing.trigger, self._trigger_context
        data = window.to_bytes()
        self._enter(data, place)
        context.merged = [one.to_bytes() for one in merged]
        trigger.on_merge(window, context)
        for one in merged:
            if one != window:
                self._enter_own((key, one.to_bytes()))
                trigger.clear(one, context)
                self._delete_cleanup(one)
        target = (key, place)
        sources = [(key, other) for other in others]
        merge_namespaces(self._contents.state, self._enter_held, target, sources)

    def _enter(self, own: bytes, place: bytes) -> None:
        """Set the current key of all states to a window, whose contents lie at `place`."""
        key = self.current.key
        if self._guarded:
            self._enter_own((key, own))
            self._enter_held((key, place))
        else:
            self._own.current.key = (key, own)
            self._held.current.key = (key, place)

    def _enter_own(self, key: Any) -> None:
        self._undo.enter(self._own, key)

    def _enter_held(self, key: Any) -> None:
        self._undo.enter(self._held, key)

    def _is_over(self, window: Any) -> bool:
        """Whether an element is too late for a window."""
        return self._event_time and self._cleanup_time(window) <= self._timers.watermark

    def _is_late(self, time: int | None) -> bool:
        if not self._event_time or time is None:
            return False
        return time + self._lateness <= self._timers.watermark

    def _give_late(self, element: Any, time: int | None, out: list[Any]) -> None:
        late = self._windowing.late
        if late is None:
            self._dropped.inc()
        else:
            out.append((late, element))
            self._window_times.append(time)

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_WATERMARK) if self._event_time else end

    def _set_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        # A window that never ends needs no timer.
        if time < MAX_WATERMARK:
            self._cleanup_timers().register(time, self._own.current.key[1])

    def _delete_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time < MAX_WATERMARK:
            self._cleanup_timers().delete(time, self._own.current.key[1])

    def _cleanup_timers(self) -> TimerTable:
        return self._timers.event() if self._event_time else self._timers.processing()

    @override
    def begin_undoable(self) -> None:
        self._undo.begin()

    @override
    def undo(self) -> None:
        self._undo.undo()

    def _out_times(self, times: Times, ends: Ends) -> Times:
        return self._window_times

    def _divert(self, error: Exception, element: Any, key: Any, out: list[Any]) -> None:
        times = self._window_times
        del times[len(out) :]
        super()._divert(error, element, key, out)
        times.extend(repeat(self._element_context.time, len(out) - len(times)))


def _fire_nothing(timer: Timer, out: list[Any]) -> None:
    """A timer of windows in another time domain, under the same uid."""
