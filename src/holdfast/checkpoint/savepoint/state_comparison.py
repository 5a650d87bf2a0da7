"""Compares an operator's keys and states in a savepoint with those of the program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from holdfast.api.descriptors import MapStateDescriptor
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.streams.output_type import return_annotation
from holdfast.errors import HoldfastError, TypeDeclarationError
from holdfast.runtime.windows.operator import THE_KEY
from holdfast.serde.factory import codec_for
from holdfast.serde.key_shapes import KeyShape
from holdfast.serde.reading import reading_of
from holdfast.state.catalog import stored_as
from holdfast.state.operator.backend import stored_in_mode
from holdfast.state.operator.handles import converted
from holdfast.state.schemas import SchemaHistory, as_stored, declare
from holdfast.state.timers.table import KIND as TIMERS
from holdfast.types.annotations import origin_of, struct_members, unwrapped
from holdfast.types.arrow import key_type
from holdfast.types.columns.rows import column_hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.job.declared_states import DeclaredStates, OwnState
    from holdfast.runtime.plan import KeyPlan, OperatorPlan
    from holdfast.serde.codec import Codec
    from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
    from holdfast.types.annotations import Annotation
    from holdfast.types.stream_type import StreamType


StateVerdict: TypeAlias = Literal[
    "as is",
    "after migration",
    "incompatible",
    "another kind",
    "new, starts empty",
    "not declared now, kept",
    "not compared",
]
"""How a state is restored."""


BUILT_IN: Final = (
    ". This state belongs to the operator, and cannot be renamed: give the operator another uid, "
    "under which it starts empty"
)
"""Suffix of a problem with a state whose name the program does not choose."""


@dataclass(frozen=True, slots=True)
class StateComparison:
    """How a state is restored."""

    name: str
    kind: str
    """The declared or else the stored kind; for operator state, the redistribution mode."""
    verdict: StateVerdict
    notes: tuple[str, ...] = ()
    """Incompatibilities field by field, and changes that a start accepts."""
    problem: str | None = None
    """What a start would be refused with, and what to do."""


def compare_keyed(
    stored: Iterable[dict[str, Any]], declared: DeclaredStates
) -> Iterator[StateComparison]:
    """Compare an operator's keyed states and timers.

    Args:
        stored: Descriptions of the states in the snapshot's metadata.
        declared: The states that the operator declares now.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for state in stored:
        by_name.setdefault(state["name"], []).append(state)
    for name, states in by_name.items():
        kind = states[0]["kind"]
        if kind == TIMERS:
            yield StateComparison(name, kind, "as is")
        elif name in declared.keyed:
            found = _keyed(states, declared.keyed[name])
            if found.problem is not None and name in declared.built_in:
                found = replace(found, problem=found.problem + BUILT_IN)
            yield found
        else:
            yield StateComparison(name, kind, _undeclared(declared))
    for name, descriptor in declared.keyed.items():
        if name not in by_name:
            yield StateComparison(name, descriptor.kind, "new, starts empty")


def compare_own(
    stored: Sequence[OperatorStateSnapshot | None], declared: DeclaredStates
) -> Iterator[StateComparison]:
    """Compare an operator's operator states.

    Args:
        stored: The states of every subtask; None for a subtask without any.
        declared: The states that the operator declares now.
    """
    by_name: dict[str, list[NamedState]] = {}
    for snapshot in stored:
        for state in [] if snapshot is None else snapshot.states:
            by_name.setdefault(state.name, []).append(state)
    for name, states in by_name.items():
        if name in declared.own:
            yield _own(states, declared.own[name])
        else:
            yield StateComparison(name, states[0].mode, _undeclared(declared))
    for name, own in declared.own.items():
        if name not in by_name:
            yield StateComparison(name, own.mode, "new, starts empty")


def _undeclared(declared: DeclaredStates) -> StateVerdict:
    return "not declared now, kept" if declared.unknown is None else "not compared"


def _keyed(states: list[dict[str, Any]], descriptor: StateDescriptor) -> StateComparison:
    name, kind = descriptor.name, descriptor.kind
    for state in states:
        if state["kind"] != kind:
            problem = str(stored_as(name, kind, state["kind"]))
            note = f"was {state['kind']}"
            return StateComparison(name, kind, "another kind", (note,), problem)
    histories = [SchemaHistory(state["schema"], state.get("others", {})) for state in states]
    try:
        codecs = _codecs(descriptor)
        declare(name, histories, codecs)
    except HoldfastError as error:
        found = _incompatible(name, kind, error)
    else:
        schemas = [schemas for history in histories for schemas in history.known().values()]
        found = StateComparison(name, kind, _verdict(schemas, codecs))
    timed = descriptor.time_to_live is not None
    if any(bool(state.get("ttl")) != timed for state in states):
        change = "added" if timed else "removed"
        found = replace(found, notes=(*found.notes, f"time to live {change}"))
    return found


def _own(states: list[NamedState], own: OwnState) -> StateComparison:
    name, mode = own.descriptor.name, own.mode
    for state in states:
        if state.mode != mode:
            problem = str(stored_in_mode(name, mode, state.mode))
            return StateComparison(name, mode, "another kind", (f"was {state.mode}",), problem)
    try:
        codecs = _codecs(own.descriptor)
        schema = as_stored([codec.schema for codec in codecs])
        for state in states:
            if state.schema != schema:
                converted(state, codecs, schema)
    except HoldfastError as error:
        return _incompatible(name, mode, error)
    return StateComparison(name, mode, _verdict([state.schema for state in states], codecs))


def _codecs(descriptor: Any) -> list[Codec]:
    """Codec of a state's values and, for a map, of its keys."""
    if isinstance(descriptor, MapStateDescriptor):
        return [codec_for(descriptor.value_type), codec_for(descriptor.key_type)]
    return [codec_for(descriptor.type)]


def _verdict(stored: list[list[Any]], codecs: list[Codec]) -> StateVerdict:
    """How values of all stored schemas, which are compatible, are read."""
    readings = [
        reading_of(schema, codec)
        for schemas in stored
        for schema, codec in zip(schemas, codecs, strict=False)
    ]
    as_is = all(reading.resolution.verdict == "as is" for reading in readings)
    return "as is" if as_is else "after migration"


def _incompatible(name: str, kind: str, error: HoldfastError) -> StateComparison:
    # The error lists one incompatibility per indented line.
    lines = [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
    return StateComparison(name, kind, "incompatible", tuple(lines), str(error))


KeyVerdict: TypeAlias = Literal["as is", "incompatible", "not compared"]
"""How keys are restored; they never evolve."""


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """Whether the program's keys have the type of the stored keys."""

    verdict: KeyVerdict
    note: str = ""
    """Why they are not compared, or their current type."""
    problem: str | None = None
    """What a start would be refused with, and what to do."""


class _Part(NamedTuple):
    """The possible types of a key, or of a component of one."""

    names: tuple[str, ...]
    """Names of its possible shapes, the declared one first."""
    sure: bool = True
    """Whether the declaration determines the first one."""


_UNKNOWN: Final = _Part(("?",), sure=False)

_DECLARED: Final[dict[type, _Part]] = {
    # An annotation allows subclasses, and float allows integers.
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
"""Keys with more possible shapes are not compared."""

_NAMES: Final = frozenset(name for part in _DECLARED.values() for name in part.names)
"""Names of all key shapes except tuples."""


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """The possible key shapes of one input of the program."""

    shapes: tuple[KeyShape, ...]
    """The possible shapes, the declared one first."""
    sure: bool

    @classmethod
    def of(cls, parts: Sequence[_Part], *, in_tuple: bool) -> ProgramKey | None:
        """Combine the parts of a key; None if there are too many possible types."""
        if prod(len(part.names) for part in parts) > _MOST_SHAPES:
            return None
        named = product(*(part.names for part in parts))
        shapes = (f"tuple[{', '.join(names)}]" if in_tuple else names[0] for names in named)
        return cls(tuple(map(KeyShape, shapes)), all(part.sure for part in parts))


def compare_keys(stored: str, operator: OperatorPlan, *, has_state: bool) -> KeyComparison:
    """Compare an operator's keys with the stored ones.

    Args:
        stored: Name of the shape of the stored keys.
        operator: The operator, which may have two inputs.
        has_state: Whether the operator declares keyed state; otherwise keys are not compared.
    """
    if not has_state:
        return KeyComparison("not compared", "it does not declare keyed state")
    found = [_compared(KeyShape(stored), declared) for declared in _inputs(operator)]
    for verdict in ("incompatible", "not compared"):
        for one in found:
            if one.verdict == verdict:
                return one
    return found[0]


def _inputs(operator: OperatorPlan) -> Iterator[ProgramKey | None]:
    """Yield the keys of every keyed input, as far as the program declares them."""
    if operator.key is None:
        # Windows over all elements have one fixed key.
        one_key = operator.kind in (OperatorKind.WINDOW, OperatorKind.WINDOW_JOIN)
        yield ProgramKey((KeyShape.of(THE_KEY),), sure=True) if one_key else None
        return
    yield _declared_key(operator.key, operator.input)
    if operator.second is not None and operator.second.key is not None:
        yield _declared_key(operator.second.key, operator.second.type)


def _compared(stored: KeyShape, declared: ProgramKey | None) -> KeyComparison:
    if declared is None:
        return KeyComparison("not compared", "its type is known only when rows come")
    now = declared.shapes[0]
    fitting = [shape for shape in declared.shapes if stored.joined(shape) is not None]
    if not fitting:
        problem = (
            f"the key is {now.described()}, but the stored state of this operator has "
            f"{stored.name} keys, and keys never evolve; let all keys be {stored.name} as before, "
            "or give the operator another uid, under which it starts empty"
        )
        return KeyComparison("incompatible", f"is {now.name}", problem)
    if "?" in stored.name:
        return KeyComparison("not compared", "a part of it was null in all rows")
    if not declared.sure or fitting[0] != now:
        return KeyComparison("not compared", "its key function does not declare it exactly")
    return KeyComparison("as is")


def _declared_key(key: KeyPlan, stream: StreamType) -> ProgramKey | None:
    """The declared keys of an input; None if nothing is known."""
    if key.selector is not None:
        return _of_annotation(return_annotation(key.selector))
    hints = column_hints(stream)
    parts = [_of_column(stream.schema.field(place).type, hints[place]) for place in key.columns]
    if parts == [_UNKNOWN]:
        return None
    return ProgramKey.of(parts, in_tuple=len(parts) > 1)


def _of_column(column: pa.DataType, hint: Annotation) -> _Part:
    # Enum members are read as such, and are keys only if they are str or int.
    core, _ = unwrapped(hint)
    if isinstance(core, type) and hasattr(core, "__members__"):
        return _of_class(core)
    name = key_type(column)
    return _Part((name,)) if name in _NAMES else _UNKNOWN


def _of_annotation(annotation: Annotation) -> ProgramKey | None:
    core, _ = unwrapped(annotation)
    components = _components(core)
    if components is not None:
        return ProgramKey.of([_of_component(one) for one in components], in_tuple=True)
    part = _of_component(core)
    return None if part is _UNKNOWN else ProgramKey.of([part], in_tuple=False)


def _components(core: Any) -> list[Annotation] | None:
    """Annotations of a tuple's components; None unless it is a tuple of known length."""
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
    return next((_DECLARED[cls] for cls in core.__mro__ if cls in _DECLARED), _UNKNOWN)
