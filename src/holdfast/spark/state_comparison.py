"""The stored states of an operator held against those that it declares now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from holdfast.api.descriptors import MapStateDescriptor
from holdfast.errors import HoldfastError
from holdfast.state.catalog import other_kind
from holdfast.state.codec import codec_for
from holdfast.state.operator_conversion import converted
from holdfast.state.schema_history import SchemaHistory
from holdfast.state.schema_registration import as_stored, declared_in
from holdfast.state.schema_resolution import reading_of
from holdfast.state.timers import KIND as TIMERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.spark.declared_states import DeclaredStates, OwnState
    from holdfast.state.codec import Codec
    from holdfast.state.redistribution import NamedState, OperatorStateSnapshot

StateVerdict: TypeAlias = Literal[
    "as is",
    "after migration",
    "incompatible",
    "another kind",
    "new, starts empty",
    "not declared now, kept",
    "not compared",
]
"""What becomes of a state."""

BUILT_IN: Final = (
    ". The operator has this state by itself, so nobody can name it: give the operator another "
    "uid, under which it starts empty"
)
"""What a problem ends in with a state whose name the program does not choose."""


@dataclass(frozen=True, slots=True)
class StateComparison:
    """What becomes of a state."""

    name: str
    kind: str
    """As it is declared now, or as it is stored; of operator state, how it is dealt out."""
    verdict: StateVerdict
    notes: tuple[str, ...] = ()
    """What is incompatible, field by field; what a start does not refuse, but is to be known."""
    problem: str | None = None
    """What a start would be refused with, and what to do."""


def compare_keyed(
    stored: Iterable[dict[str, Any]], declared: DeclaredStates
) -> Iterator[StateComparison]:
    """What becomes of an operator's keyed states, and of its timers.

    Args:
        stored: Descriptions of the states, as a snapshot's metadata has them.
        declared: What the operator declares now.
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
    """What becomes of an operator's own states, those of no key.

    Args:
        stored: The states of every subtask; None where there was none.
        declared: What the operator declares now.
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
            problem = str(other_kind(name, kind, state["kind"]))
            note = f"was {state['kind']}"
            return StateComparison(name, kind, "another kind", (note,), problem)
    histories = [SchemaHistory(state["schema"], state.get("others", {})) for state in states]
    try:
        codecs = _codecs(descriptor)
        declared_in(name, histories, codecs)
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
            problem = (
                f"Incompatible state assignment modes: operator state {name!r} is a {state.mode} "
                f"state of this operator and cannot be a {mode} state too; choose another name"
            )
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
    """Codec of a state's values and, of a map, of its keys."""
    if isinstance(descriptor, MapStateDescriptor):
        return [codec_for(descriptor.value_type), codec_for(descriptor.key_type)]
    return [codec_for(descriptor.type)]


def _verdict(stored: list[list[Any]], codecs: list[Codec]) -> StateVerdict:
    """How values of all stored schemas are read; they are compatible."""
    readings = [
        reading_of(schema, codec)
        for schemas in stored
        for schema, codec in zip(schemas, codecs, strict=False)
    ]
    as_is = all(reading.resolution.verdict == "as is" for reading in readings)
    return "as is" if as_is else "after migration"


def _incompatible(name: str, kind: str, error: HoldfastError) -> StateComparison:
    # The error lists what is wrong in lines of their own.
    lines = [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
    return StateComparison(name, kind, "incompatible", tuple(lines), str(error))
