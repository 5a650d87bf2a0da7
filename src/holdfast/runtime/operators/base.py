"""Runs user functions over lists of elements: the per-event path.

An operator takes the elements of a record batch and, on a keyed stream, their keys,
and returns the output of the function. The loops are as bare as Python allows:
everything that can be decided once per batch is decided outside of them. Elements with
event time have a separate loop, so that other elements do not pay for it.
"""

from __future__ import annotations

import inspect
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.api.functions import Function
from holdfast.api.names import advice_on_missing
from holdfast.api.outputs import FailedRow
from holdfast.errors import HoldfastError, StoreError, UserFunctionError
from holdfast.state.table import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import CodeType

    from holdfast.runtime.context import ElementContext, SubtaskContext
    from holdfast.runtime.plan import EpochPlan, OperatorPlan
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.table import CurrentKey


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


Times = Sequence[int | None]
"""Event times of elements; None for one that has none."""
Ends = list[int]
"""For every element, the number of outputs up to and including its own."""


class Output(NamedTuple):
    """The output of an operator, with event times."""

    elements: list[Any]
    times: Times | None = None
    """Event time of every element; None if the stream has none."""


class Operator(ABC):
    """One operator on one subtask, epoch after epoch."""

    def __init__(
        self,
        plan: OperatorPlan,
        context: SubtaskContext,
        subtask: int,
        element_context: ElementContext,
        current: CurrentKey,
        keyed_state: Callable[[], KeyedStateBackend],
        *,
        batch_mode: bool,
    ) -> None:
        """An operator that is not open yet; `keyed_state` opens its state on first use."""
        self.plan = plan
        self.context = context
        self.subtask = subtask
        self.current = current
        self._keyed_state = keyed_state
        self._batch_mode = batch_mode
        self._element_context = element_context
        self._function = plan.function
        self.is_open = False
        self.store: Path | None = None
        """Directory of the operator's store, once it is opened."""
        self._start_counting()

    def _start_counting(self) -> None:
        self.skipped = 0
        """Elements of the epoch that the error policy has dropped or diverted."""
        self.latest: int | None = None
        """Latest event time that the operator has given an element of the epoch."""
        self.emitted: int | None = None
        """Greatest watermark that its generator has emitted in the epoch."""

    def begin(self, epoch: EpochPlan | None, attempt_id: int, *, own_state: bool) -> None:
        """Prepare for an epoch, open or not.

        Args:
            epoch: The epoch; None at the sources.
            attempt_id: Unique number of the task.
            own_state: Whether no other process has changed the state since the last epoch here.
        """
        self._start_counting()

    def end_epoch(self) -> None:
        """Close what lives for one epoch only."""
        return

    def open(self) -> None:
        """Open the function."""
        self.is_open = True
        if isinstance(self._function, Function):
            with Reported(self, "in open()"):
                self._function.open(self.context)
        self._call = self._bind()
        self._calls = (self._call, self._bind_second())

    @property
    def needs_closing(self) -> bool:
        """Whether the function is open, and does something when it is closed."""
        function = self._function
        return (
            self.is_open
            and isinstance(function, Function)
            and type(function).close is not Function.close
        )

    def close(self) -> None:
        """Close the function; does nothing the second time."""
        if isinstance(self._function, Function) and self.is_open:
            self.is_open = False
            with Reported(self, "in close()"):
                self._function.close()

    def abort(self) -> None:
        """Drop effects outside of state, since the epoch has failed; before `close`."""
        return

    def process(
        self, elements: list[Any], keys: list[Any] | None, times: Times | None = None, side: int = 0
    ) -> Output:
        """Run the function on `elements`; its output, with tagged outputs among it.

        Args:
            elements: Elements of one input.
            keys: Their keys, if the input is keyed.
            times: Their event times; None if the stream has none.
            side: Their input, for an operator with two.
        """
        out: list[Any] = []
        ends: Ends | None = None if times is None else []
        self._begin_batch(side)
        try:
            if self._is_guarded(side):
                self._run_guarded(elements, keys, times, out, ends)
            elif times is None or ends is None:
                self._run(elements, repeat(NO_KEY) if keys is None else keys, out)
            else:
                self._run_timed(
                    elements, repeat(NO_KEY) if keys is None else keys, times, out, ends
                )
        except UserFunctionError:
            raise
        except HoldfastError as error:
            raise self._located(error) from error
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self.current.key = NO_KEY
            self._element_context.time = None
        return Output(out, None if times is None or ends is None else self._out_times(times, ends))

    def _begin_batch(self, side: int) -> None:
        """Prepare for elements of one input."""
        self._call = self._calls[side]

    def _is_guarded(self, side: int) -> bool:
        """Whether the error policy covers elements of an input."""
        return self.plan.policy.mode != "fail"

    def _out_times(self, times: Times, ends: Ends) -> Times:
        """Event time of every output: that of its element."""
        if ends == list(range(1, len(times) + 1)):
            return times
        out: list[int | None] = []
        for time, end in zip(times, ends, strict=True):
            out.extend(repeat(time, end - len(out)))
        return out

    def time_at_hand(self) -> int | None:
        """Event time of the current element; None if it has none, and while timers fire."""
        return self._element_context.time

    def finish(self) -> list[Any]:
        """The output at the end of the input."""
        return []

    @abstractmethod
    def _bind(self) -> Callable[..., Any]:
        """The callable of the loop; called when the function is open."""

    def _bind_second(self) -> Callable[..., Any]:
        """The callable for elements of the second input, if there is one."""
        return self._call

    @abstractmethod
    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        """The loop: call the function on every element, with its key set."""

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        """The loop over elements with event time; records where the outputs of each end."""
        context, run = self._element_context, self._run
        for element, key, context.time in zip(elements, keys, times, strict=False):
            run((element,), (key,), out)  # type: ignore[arg-type]
            ends.append(len(out))

    def _run_guarded(
        self,
        elements: list[Any],
        keys: list[Any] | None,
        times: Times | None,
        out: list[Any],
        ends: Ends | None,
    ) -> None:
        """The loop under the error policy; undoes all changes of an element that fails."""
        every_key, every_time = keys or repeat(NO_KEY), times or repeat(None)
        context = self._element_context
        for element, key, context.time in zip(elements, every_key, every_time, strict=False):
            with Undone(self, key, element, out):
                self._run([element], (key,), out)
            if ends is not None:
                ends.append(len(out))

    def _divert(self, error: Exception, element: Any, key: Any, out: list[Any]) -> None:
        self.skipped += 1
        tag = self.plan.policy.tag
        if tag is not None:
            text = "".join(traceback.format_exception_only(error)).strip()
            key = None if key is NO_KEY else key
            out.append((tag, FailedRow(element, key, text, user_traceback(error))))

    def _user_error(self, error: BaseException) -> UserFunctionError:
        key, row = short(self.current.key), short(self._element_of(error))
        details = f"  key: {key}\n  row: {row}\n{self._hint(error)}"
        return user_error(self.describe(), error, details)

    def _hint(self, error: BaseException) -> str:
        """A line of advice for an error of user code; empty if there is none."""
        if not isinstance(error, TypeError) or self._element_context.time is not None:
            return ""
        codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        asked = any("timestamp" in code.co_names for code in codes)
        if not asked or "NoneType" not in str(error):
            return ""
        return (
            "  hint: timestamp() is None, since the elements have no event time; call "
            "assign_timestamps_and_watermarks() on the stream, before key_by\n"
        )

    def store_error(self, error: StoreError) -> StoreError:
        """The same error with operator and store; user code is not the cause."""
        text, operator = str(error), self.describe()
        if text.startswith(operator):
            return error
        if self.store is not None and str(self.store) not in text:
            text = f"{self.store}: {text}"
        return type(error)(f"{operator}: {text}")

    def _located(self, error: HoldfastError) -> HoldfastError:
        """The same error, with operator, key and row."""
        if isinstance(error, StoreError):
            return self.store_error(error)
        return type(error)(
            f"{self.describe()}: {error}\n"
            f"  key: {short(self.current.key)}\n"
            f"  row: {short(self._element_of(error))}"
        )

    def _element_of(self, error: BaseException) -> object:
        """The current element when `error` was raised.

        It is read from the frame of the loop, so that the loop need not store it.
        """
        loops = self._loops()
        trace, found = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code in loops:
                found = trace.tb_frame.f_locals.get("element")
            trace = trace.tb_next
        return found

    def _loops(self) -> set[CodeType]:
        """The code of the loops over elements."""
        return {type(self)._run.__code__, type(self)._run_timed.__code__}

    def begin_undoable(self) -> None:
        """Start recording changes beyond those of the current key, for `undo`."""
        return

    def undo(self) -> None:
        """Undo the recorded changes."""
        return

    def output_advice(self) -> str:
        """What may be wrong if an output does not fit its type, added to the message."""
        return ""

    def describe(self) -> str:
        """Name, uid and subtask, for messages."""
        plan = self.plan
        return (
            f"operator {plan.name!r} (uid {plan.uid!r}), "
            f"subtask {self.subtask + 1}/{plan.parallelism}"
        )


class Undone:
    """Undoes, under the error policy, all changes of a call to a key if it raises."""

    def __init__(self, operator: Operator, key: Any, element: Any, out: list[Any]) -> None:
        """`element` is what the policy diverts."""
        self._operator, self._key, self._element, self._out = operator, key, element, out

    def __enter__(self) -> None:
        keyed = self._key is not NO_KEY
        self._tables = self._operator._keyed_state().tables if keyed else []
        self._saved = [(table, table.save_point(self._key)) for table in self._tables]
        self._length = len(self._out)
        self._operator.begin_undoable()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, HoldfastError) or not isinstance(error, Exception):
            return False
        del self._out[self._length :]
        self._operator.undo()
        for table, entry in self._saved:
            table.roll_back(self._key, entry)
        for table in self._tables[len(self._saved) :]:
            # It was registered meanwhile, and was empty before.
            table.roll_back(self._key, table.save_point(NO_KEY))
        self._operator._divert(error, self._element, self._key, self._out)
        return True


class Reported:
    """Turns exceptions of user code outside of elements into located errors."""

    def __init__(self, operator: Operator, where: str) -> None:
        """Errors of `operator`, raised at `where`, such as "in open()"."""
        self._operator = operator
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise self._operator.store_error(error) from error
        if isinstance(error, HoldfastError):
            raise type(error)(f"{self._operator.describe()}, {self._where}: {error}") from error
        if isinstance(error, Exception):
            raise user_error(f"{self._operator.describe()}, {self._where}", error) from error


def always_iterable(call: Callable[..., Any]) -> Callable[..., Iterable[Any]]:
    """`call`, returning an empty tuple instead of None."""
    if inspect.isgeneratorfunction(call):
        return call

    def wrapped(*args: Any) -> Iterable[Any]:
        out = call(*args)
        return () if out is None else out

    return wrapped


def returned_outputs(*calls: Callable[..., Any]) -> str:
    """Advice for functions that return outputs that do not fit, instead of yielding them."""
    names = [f"{c.__name__}()" for c in calls if not inspect.isgeneratorfunction(c)]
    if not names:
        return ""
    return (
        f". {' and '.join(names)} uses return, so its result is a list of outputs: `return a, b` "
        "outputs a, then b. To output one tuple, use `yield a, b`"
    )


def user_error(where: str, error: BaseException, details: str = "") -> UserFunctionError:
    """The error for an exception of user code: where, which, its details and its traceback."""
    advice = advice_on_missing(error)
    if advice:
        details = f"{details}  hint: {advice}\n"
    return UserFunctionError(
        f"{where}: {type(error).__name__}: {error}\n{details}{user_traceback(error)}"
    )


def user_traceback(error: BaseException) -> str:
    """The traceback of `error`, from the first frame of user code."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [i for i, frame in enumerate(frames) if not frame.filename.startswith(_PACKAGE)]
    start = outside[0] if outside else 0
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[start:])]
    lines += traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def short(value: object, limit: int = 500) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
