"""The type of an operator's stored keys held against the one that the program tells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from holdfast.api.annotations import origin_of, struct_members, unwrapped
from holdfast.api.graph import Kind
from holdfast.api.key_types import key_type
from holdfast.api.types import return_annotation
from holdfast.errors import TypeDeclarationError
from holdfast.runtime.rows import column_hints
from holdfast.runtime.window_operator import THE_KEY
from holdfast.state.key_shapes import KeyShape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from holdfast.api.annotations import Annotation
    from holdfast.api.types import StreamType
    from holdfast.runtime.plan import KeyPlan, OperatorPlan

KeyVerdict: TypeAlias = Literal["as is", "incompatible", "not compared"]
"""What becomes of keys; they never evolve."""


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """Whether the keys of the program are of the type of those that are stored."""

    verdict: KeyVerdict
    note: str = ""
    """Why they are not compared, or what they are now."""
    problem: str | None = None
    """What a start would be refused with, and what to do."""


class _Part(NamedTuple):
    """What is known of a key, or of a component of one."""

    names: tuple[str, ...]
    """Names of the shapes that it may have, the one that it is said to have first."""
    sure: bool = True
    """Whether it has that one, if it is what it is said to be."""


_UNKNOWN: Final = _Part(("?",), sure=False)
_SAID: Final[dict[type, _Part]] = {
    # An annotation allows for the classes below it, and float for integers.
    bool: _Part(("bool",)),
    int: _Part(("int", "bool")),
    float: _Part(("float", "int", "bool")),
    str: _Part(("str",)),
    bytes: _Part(("bytes",)),
    Decimal: _Part(("Decimal",)),
    datetime: _Part(("datetime", "datetime_ntz"), sure=False),
    date: _Part(("date", "datetime", "datetime_ntz")),
}
_MOST_SHAPES: Final = 1000
"""Shapes that keys may have, beyond which they are not compared."""
_NAMES: Final = frozenset(name for part in _SAID.values() for name in part.names)
"""Names of all shapes that a key can have, but for tuples."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What the program tells of the keys of one input."""

    shapes: tuple[KeyShape, ...]
    """Those that keys may have, the one that they are said to have first."""
    sure: bool

    @classmethod
    def of(cls, parts: Sequence[_Part], *, in_tuple: bool) -> _Told | None:
        if prod(len(part.names) for part in parts) > _MOST_SHAPES:
            return None
        named = product(*(part.names for part in parts))
        shapes = (f"tuple[{', '.join(names)}]" if in_tuple else names[0] for names in named)
        return cls(tuple(map(KeyShape, shapes)), all(part.sure for part in parts))


def compare_keys(stored: str, operator: OperatorPlan, *, has_state: bool) -> KeyComparison:
    """Whether an operator's keys are of the type of those that are stored.

    Args:
        stored: Name of the shape of the stored keys.
        operator: The operator, which may have two inputs.
        has_state: Whether it is known to have keyed state: keys are looked at only then.
    """
    if not has_state:
        return KeyComparison("not compared", "it does not declare keyed state")
    found = [_compared(KeyShape(stored), told) for told in _inputs(operator)]
    for verdict in ("incompatible", "not compared"):
        for one in found:
            if one.verdict == verdict:
                return one
    return found[0]


def _inputs(operator: OperatorPlan) -> Iterator[_Told | None]:
    """What is told of the keys of every input that has some."""
    if operator.key is None:
        # Windows over all elements have one key, and nothing else without keys has such state.
        one_key = operator.kind in (Kind.WINDOW, Kind.WINDOW_JOIN)
        yield _Told((KeyShape.of(THE_KEY),), sure=True) if one_key else None
        return
    yield _told(operator.key, operator.input)
    if operator.second is not None and operator.second.key is not None:
        yield _told(operator.second.key, operator.second.type)


def _compared(stored: KeyShape, told: _Told | None) -> KeyComparison:
    if told is None:
        return KeyComparison("not compared", "its type shows when rows come")
    now = told.shapes[0]
    fitting = [shape for shape in told.shapes if stored.joined(shape) is not None]
    if not fitting:
        problem = (
            f"the key is a {now.name}, but the keys of this operator are {stored.name}, and keys "
            f"never evolve; let it be {stored.name} again, or give the operator another uid, under "
            "which it starts empty"
        )
        return KeyComparison("incompatible", f"is {now.name}", problem)
    if "?" in stored.name:
        return KeyComparison("not compared", "a part of it was null in all rows")
    if not told.sure or fitting[0] != now:
        return KeyComparison("not compared", "its key function does not tell it exactly")
    return KeyComparison("as is")


def _told(key: KeyPlan, stream: StreamType) -> _Told | None:
    """What is told of keys; None if nothing is."""
    if key.selector is not None:
        return _of_annotation(return_annotation(key.selector))
    hints = column_hints(stream)
    parts = [_of_column(stream.schema.field(place).type, hints[place]) for place in key.columns]
    if parts == [_UNKNOWN]:
        return None
    return _Told.of(parts, in_tuple=len(parts) > 1)


def _of_column(column: pa.DataType, hint: Annotation) -> _Part:
    # Members of an enum come out of a column as such, and are keys only if they are str or int.
    core, _ = unwrapped(hint)
    if isinstance(core, type) and hasattr(core, "__members__"):
        return _of_class(core)
    name = key_type(column)
    return _Part((name,)) if name in _NAMES else _UNKNOWN


def _of_annotation(annotation: Annotation) -> _Told | None:
    core, _ = unwrapped(annotation)
    components = _components(core)
    if components is not None:
        return _Told.of([_of_component(one) for one in components], in_tuple=True)
    part = _of_component(core)
    return None if part is _UNKNOWN else _Told.of([part], in_tuple=False)


def _components(core: Any) -> list[Annotation] | None:
    """Annotations of a tuple's components; None of what is no tuple of a known length."""
    if any(getattr(one, "__unpacked__", False) for one in get_args(core)):
        return None
    if origin_of(core) is not tuple and not (isinstance(core, type) and issubclass(core, tuple)):
        return None
    try:
        members = struct_members(core)
    except TypeDeclarationError:
        # An annotation of a field cannot be resolved.
        return None
    return None if members is None else [member.annotation for member in members]


def _of_component(annotation: Annotation) -> _Part:
    core, _ = unwrapped(annotation)
    if origin_of(core) is Literal:
        core = type(get_args(core)[0]) if len(set(map(type, get_args(core)))) == 1 else None
    return _of_class(core) if isinstance(core, type) else _UNKNOWN


def _of_class(core: type) -> _Part:
    return next((_SAID[cls] for cls in core.__mro__ if cls in _SAID), _UNKNOWN)
