"""Running user functions over lists of elements: the per-event path.

Each operator takes the elements of a record batch and, if it is keyed, their keys,
and returns what the function gave out. The loops are as bare as Python allows:
whatever can be decided once per batch is decided outside of them.
"""

from __future__ import annotations

import inspect
import traceback
from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from holdfast.api.descriptors import ValueStateDescriptor
from holdfast.api.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    ReduceFunction,
)
from holdfast.api.graph import Kind
from holdfast.api.state import ValueState
from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.state.table import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.api.types import StreamType
    from holdfast.runtime.context import ElementContext, SubtaskContext
    from holdfast.runtime.plan import OperatorPlan
    from holdfast.state.keyed_backend import KeyedStateBackend
    from holdfast.state.table import CurrentKey


REDUCED = "reduced"
"""Name of the state in which `reduce` and the rolling aggregates keep their results."""


class FailedRow(NamedTuple):
    """A row on which user code raised, as the error policy hands it to a side output."""

    row: Any
    key: Any
    error: str
    """Type and message of the exception."""
    traceback: str


class Operator(ABC):
    """One operator on one subtask, for one epoch."""

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
        self.skipped = 0
        self._keyed_state = keyed_state
        self._batch_mode = batch_mode
        self._element_context = element_context
        self._function = plan.function
        self.is_open = False

    def open(self) -> None:
        """Open the function."""
        self.is_open = True
        if isinstance(self._function, Function):
            with Reported(self, "in open()"):
                self._function.open(self.context)
        self._call = self._bind()

    def close(self) -> None:
        """Close the function; once, however often it is asked for."""
        if isinstance(self._function, Function) and self.is_open:
            self.is_open = False
            with Reported(self, "in close()"):
                self._function.close()

    def abort(self) -> None:
        """The epoch has failed: drop what was done outside of state; before `close`."""
        return

    def process(self, elements: list[Any], keys: list[Any] | None) -> list[Any]:
        """What the function gives out for `elements`; tagged outputs among it."""
        out: list[Any] = []
        try:
            if self.plan.policy.mode == "fail":
                self._run(elements, repeat(NO_KEY) if keys is None else keys, out)
            else:
                self._run_guarded(elements, keys, out)
        except UserFunctionError:
            raise
        except HoldfastError as error:
            raise self._located(error) from error
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self.current.key = NO_KEY
        return out

    def finish(self) -> list[Any]:
        """What the operator gives out at the end of its input."""
        return []

    @abstractmethod
    def _bind(self) -> Callable[..., Any]:
        """What the loop calls; the function is open by then."""

    @abstractmethod
    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        """The loop: call the function on every element, with its key set."""

    def _run_guarded(self, elements: list[Any], keys: list[Any] | None, out: list[Any]) -> None:
        """One by one, undoing all that a failing element has done."""
        for element, key in zip(elements, keys or repeat(NO_KEY), strict=False):
            length = len(out)
            backend = self._keyed_state() if keys else None
            tables = [] if backend is None else backend.tables
            remembered = [(table, table.remember(key)) for table in tables]
            try:
                self._run([element], (key,), out)
            except HoldfastError:
                raise
            except Exception as error:
                del out[length:]
                for table, entry in remembered:
                    table.put_back(key, entry)
                for table in tables[len(remembered) :]:
                    # The element registered it: there was nothing to remember.
                    table.put_back(key, table.remember(NO_KEY))
                self._divert(error, element, key, out)

    def _divert(self, error: Exception, element: Any, key: Any, out: list[Any]) -> None:
        self.skipped += 1
        tag = self.plan.policy.tag
        if tag is not None:
            text = "".join(traceback.format_exception_only(error)).strip()
            key = None if key is NO_KEY else key
            out.append((tag, FailedRow(element, key, text, user_traceback(error))))

    def _user_error(self, error: BaseException) -> UserFunctionError:
        return UserFunctionError(
            f"{self.describe()}: {type(error).__name__}: {error}\n"
            f"  key: {_short(self.current.key)}\n"
            f"  row: {_short(self._element_of(error))}\n"
            f"{user_traceback(error)}"
        )

    def _located(self, error: HoldfastError) -> HoldfastError:
        """The same error, saying where it happened."""
        return type(error)(
            f"{self.describe()}: {error}\n"
            f"  key: {_short(self.current.key)}\n"
            f"  row: {_short(self._element_of(error))}"
        )

    def _element_of(self, error: BaseException) -> object:
        """The element at hand when `error` was raised.

        It is read from the frame of the loop, so that the loop need not note it.
        """
        loop = type(self)._run.__code__
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is loop:
                return trace.tb_frame.f_locals.get("element")
            trace = trace.tb_next
        return None

    def describe(self) -> str:
        """Name, uid and subtask, for messages."""
        plan = self.plan
        return (
            f"operator {plan.name!r} (uid {plan.uid!r}), "
            f"subtask {self.subtask + 1}/{plan.parallelism}"
        )


class MapOperator(Operator):
    """One element in, one out."""

    def _bind(self) -> Callable[..., Any]:
        return bound(self._function, MapFunction, "map")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            append(call(element))


class FilterOperator(Operator):
    """Keeps some elements."""

    def _bind(self) -> Callable[..., Any]:
        return bound(self._function, FilterFunction, "filter")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            if call(element):
                append(element)


class FlatMapOperator(Operator):
    """One element in, any number out."""

    def _bind(self) -> Callable[..., Any]:
        return _always_iterable(bound(self._function, FlatMapFunction, "flat_map"))

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            for output in call(element):
                append(output)


class ProcessOperator(Operator):
    """The general operator, keyed or not."""

    def _bind(self) -> Callable[..., Any]:
        return _always_iterable(self._function.process_element)

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        context = self._element_context
        for current.key, element in zip(keys, elements, strict=False):
            for output in call(element, context):
                append(output)


class SinkOperator(Operator):
    """Hands every element to a sink function."""

    def _bind(self) -> Callable[..., Any]:
        return self._function.invoke  # type: ignore[no-any-return]

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, context, current = self._call, self._element_context, self.current
        for current.key, element in zip(keys, elements, strict=False):
            call(element, context)

    def finish(self) -> list[Any]:
        """Flush the sink."""
        with Reported(self, "in flush()"):
            self._function.flush()
        return []


class ReduceOperator(Operator):
    """Folds the elements of every key; in batch mode gives only the final results."""

    def _bind(self) -> Callable[..., Any]:
        backend = self._keyed_state()
        table = backend.register(ValueStateDescriptor(REDUCED, state_spec(self.plan.output)))
        assert isinstance(table, ValueState)
        self._table = table
        self._backend = backend
        return bound(self._function, ReduceFunction, "reduce")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        value, update = self._table.value, self._table.update
        start = len(out)
        for current.key, element in zip(keys, elements, strict=False):
            old = value()
            new = element if old is None else call(old, element)
            update(new)
            append(new)
        if self._batch_mode:
            del out[start:]

    def finish(self) -> list[Any]:
        """In batch mode, the final results."""
        return list(self._backend.values(REDUCED)) if self._batch_mode else []


def bound(function: Any, kind: type, method: str) -> Callable[..., Any]:
    """What to call: the method of a function object, or the callable itself."""
    return getattr(function, method) if isinstance(function, kind) else function  # type: ignore[no-any-return]


class Reported:
    """Turns what user code raises outside of elements into a located error."""

    def __init__(self, operator: Operator, where: str) -> None:
        """Errors of `operator`, raised at `where`, such as "in open()"."""
        self._operator = operator
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HoldfastError):
            raise type(error)(f"{self._operator.describe()}, {self._where}: {error}") from error
        if isinstance(error, Exception):
            raise UserFunctionError(
                f"{self._operator.describe()}, {self._where}: {type(error).__name__}: {error}\n"
                f"{user_traceback(error)}"
            ) from error


def _always_iterable(call: Callable[..., Any]) -> Callable[..., Iterable[Any]]:
    """`call`, giving an empty tuple where it would give None."""
    if inspect.isgeneratorfunction(call):
        return call

    def wrapped(*args: Any) -> Iterable[Any]:
        out = call(*args)
        return () if out is None else out

    return wrapped


def user_traceback(error: BaseException) -> str:
    """The traceback of `error`, from where it left this module for user code."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, frame in enumerate(frames) if frame.filename == __file__]
    start = inside[-1] + 1 if inside else 0
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[start:])]
    lines += traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _short(value: object, limit: int = 500) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def state_spec(stream: StreamType) -> Any:
    """The type under which a stream's elements are kept in state."""
    if stream.kind == "object":
        return None
    if stream.element is not None:
        return stream.element
    return stream.schema.field(0).type if stream.kind == "value" else pa.struct(list(stream.schema))


KINDS: dict[Kind, type[Operator]] = {
    Kind.MAP: MapOperator,
    Kind.FILTER: FilterOperator,
    Kind.FLAT_MAP: FlatMapOperator,
    Kind.PROCESS: ProcessOperator,
    Kind.KEYED_PROCESS: ProcessOperator,
    Kind.REDUCE: ReduceOperator,
    Kind.SINK_FUNCTION: SinkOperator,
}
"""The operator class of every kind that runs in tasks."""
