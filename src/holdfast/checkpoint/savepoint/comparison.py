"""Compares a savepoint with a program, without starting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from holdfast.api.sinks import Sink
from holdfast.checkpoint.restore.checks import (
    RestoreProblem,
    max_parallelism_problems,
    parallelism_problems,
    static_rows_problems,
    unclaimed_problems,
    window_problems,
)
from holdfast.checkpoint.restore.operator_states import read_operator_states
from holdfast.checkpoint.savepoint.state_comparison import (
    KeyComparison,
    StateComparison,
    compare_keyed,
    compare_keys,
    compare_own,
)
from holdfast.checkpoint.source_positions import position_of
from holdfast.job.declared_states import declared_states

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.api.streams.graph import JobGraph
    from holdfast.checkpoint.files.metadata import CheckpointMetadata, OperatorSnapshot
    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import OperatorPlan
    from holdfast.storage.files import JobCheckpointFiles

OperatorVerdict: TypeAlias = Literal["restored", "new, starts empty", "not in the program"]
SourceVerdict: TypeAlias = Literal["continues", "new, from its beginning", "not in the program"]

ALLOWED = " [allow_non_restored_state=True lets it pass]"
"""Suffix of a problem that `allow_non_restored_state` allows."""


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """How an operator's state is restored."""

    uid: str
    name: str
    verdict: OperatorVerdict
    parallelism: tuple[int | None, int | None]
    """Stored and current; None if there is no such operator."""
    max_parallelism: tuple[int | None, int | None]
    """Stored and current."""
    key: str | None = None
    """Type of the stored keys; None without keys."""
    key_comparison: KeyComparison | None = None
    """Whether the program's keys have that type; None without keys."""
    states: tuple[StateComparison, ...] = ()
    not_compared: str | None = None
    """Why there may be further states, or None."""


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """How a source's position is restored."""

    uid: str
    verdict: SourceVerdict


@dataclass(frozen=True, slots=True)
class SavepointComparison:
    """The result of starting a program from a savepoint; nothing was started."""

    path: str
    operators: tuple[OperatorComparison, ...]
    sources: tuple[SourceComparison, ...]
    restore_problems: tuple[RestoreProblem, ...]
    """All reasons for a refusal, including those that are allowed."""
    allow_non_restored_state: bool

    @property
    def fits(self) -> bool:
        """Whether no reason is known to refuse a start."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Why a start would be refused, and what to do."""
        return [
            problem.text + (ALLOWED if problem.can_be_allowed else "")
            for problem in self.restore_problems
            if not (problem.can_be_allowed and self.allow_non_restored_state)
        ]

    def operator(self, uid: str) -> OperatorComparison:
        """The operator with this uid.

        Raises:
            KeyError: Neither the savepoint nor the program has one.
        """
        for operator in self.operators:
            if operator.uid == uid:
                return operator
        raise KeyError(uid)

    def __str__(self) -> str:
        """The comparison as text tables."""
        problems = self.problems
        parts = ["the program fits" if self.fits else "the program does not fit"]
        parts += _table(
            ("operator", "verdict", "parallelism", "max parallelism", "key"),
            [
                (
                    one.uid,
                    one.verdict,
                    _change(*one.parallelism),
                    _change(*one.max_parallelism),
                    _key(one),
                )
                for one in self.operators
            ],
        )
        parts += _table(("state", "kind", "verdict", ""), list(_state_rows(self.operators)))
        parts += _table(("source", "verdict"), [(one.uid, one.verdict) for one in self.sources])
        parts += [f"\nproblem {number}: {text}" for number, text in enumerate(problems, 1)]
        return "\n".join(parts)


def fitting_limits(
    metadata: CheckpointMetadata, graph: JobGraph, parallelism: int
) -> dict[str, int]:
    """Stored max parallelism by uid, except for operators whose parallelism exceeds it.

    With these limits a program compiles, whatever its parallelism.

    Args:
        metadata: The snapshot.
        graph: The program.
        parallelism: Default parallelism of operators.
    """
    stored = {operator.uid: operator.max_parallelism for operator in metadata.operators}
    uids = graph.uids()
    wanted = {uids[node.id]: node.parallelism or parallelism for node in graph.nodes}
    return {uid: limit for uid, limit in stored.items() if wanted.get(uid, 0) <= limit}


def compare(
    path: str,
    files: JobCheckpointFiles,
    metadata: CheckpointMetadata,
    graph: JobGraph,
    plan: JobPlan,
    *,
    max_parallelism: int | None,
    one_pass: bool,
    allow_non_restored_state: bool,
) -> SavepointComparison:
    """Compare a savepoint or checkpoint with a program.

    Args:
        path: Path of the snapshot.
        files: Its files.
        metadata: Its metadata.
        graph: The program.
        plan: The program, compiled with `fitting_limits`.
        max_parallelism: The environment's default for operators.
        one_pass: Whether the program reads everything in one pass.
        allow_non_restored_state: Whether state may be dropped.
    """
    comparer = _Comparer(files, metadata, graph, plan, max_parallelism, one_pass)
    operators = tuple(comparer.operators())
    return SavepointComparison(
        path,
        operators,
        tuple(_sources(metadata, plan)),
        tuple(comparer.restore_problems(operators)),
        allow_non_restored_state,
    )


@dataclass
class _Comparer:
    """Compares one savepoint with one program."""

    _files: JobCheckpointFiles
    _metadata: CheckpointMetadata
    _graph: JobGraph
    _plan: JobPlan
    _max_parallelism: int | None
    _one_pass: bool

    def __post_init__(self) -> None:
        self._nodes = {self._plan.uids[node.id]: node for node in self._graph.nodes}
        self._running = self._plan.operators

    def operators(self) -> Iterator[OperatorComparison]:
        """Yield the operators of the savepoint, then new ones."""
        for snapshot in self._metadata.operators:
            operator = self._running.get(snapshot.uid)
            yield _gone(snapshot) if operator is None else self._restored(snapshot, operator)
        known = {snapshot.uid for snapshot in self._metadata.operators}
        for uid, operator in self._running.items():
            if uid not in known and self._nodes[uid].may_have_state:
                yield from self._new(operator)

    def restore_problems(self, operators: Sequence[OperatorComparison]) -> Iterator[RestoreProblem]:
        """Yield all reasons for a refusal."""
        yield from unclaimed_problems(self._metadata, self._plan)
        position = position_of(self._metadata, self._files)
        yield from map(
            RestoreProblem, static_rows_problems(position, self._plan, one_pass=self._one_pass)
        )
        for snapshot in self._metadata.operators:
            if snapshot.uid in self._running:
                yield from self._key_group_problems(snapshot, self._running[snapshot.uid])
                yield from window_problems(snapshot, self._running[snapshot.uid])
        for operator in operators:
            who = f"operator {operator.name!r} (uid {operator.uid!r})"
            for part in (operator.key_comparison, *operator.states):
                if part is not None and part.problem is not None:
                    yield RestoreProblem(f"{who}: {part.problem}")

    def _key_group_problems(
        self, snapshot: OperatorSnapshot, operator: OperatorPlan
    ) -> Iterator[RestoreProblem]:
        if self._takes_over(operator):
            node = self._nodes[operator.uid]
            return parallelism_problems(snapshot, node, operator.parallelism)
        return max_parallelism_problems(snapshot, operator)

    def _takes_over(self, operator: OperatorPlan) -> bool:
        """Whether the operator takes the stored max parallelism, since none is set."""
        return self._max_parallelism is None and self._nodes[operator.uid].max_parallelism is None

    def _restored(self, snapshot: OperatorSnapshot, operator: OperatorPlan) -> OperatorComparison:
        declared = declared_states(operator, self._plan.stages[0].job_parameters)
        own = read_operator_states(snapshot, self._files)
        stored = snapshot.max_parallelism
        keys = None
        if snapshot.key is not None:
            keys = compare_keys(snapshot.key, operator, has_state=bool(declared.keyed))
        return OperatorComparison(
            uid=snapshot.uid,
            name=operator.name,
            verdict="restored",
            parallelism=(snapshot.parallelism, operator.parallelism),
            max_parallelism=(
                stored,
                stored if self._takes_over(operator) else operator.max_parallelism,
            ),
            key=snapshot.key,
            key_comparison=keys,
            states=(*compare_keyed(snapshot.states, declared), *compare_own(own, declared)),
            not_compared=declared.unknown,
        )

    def _new(self, operator: OperatorPlan) -> Iterator[OperatorComparison]:
        if isinstance(operator.function, Sink):
            return
        declared = declared_states(operator, self._plan.stages[0].job_parameters)
        states = (*compare_keyed([], declared), *compare_own([], declared))
        if states or operator.has_timers:
            yield OperatorComparison(
                uid=operator.uid,
                name=operator.name,
                verdict="new, starts empty",
                parallelism=(None, operator.parallelism),
                max_parallelism=(None, operator.max_parallelism),
                states=states,
                not_compared=declared.unknown,
            )


def _gone(snapshot: OperatorSnapshot) -> OperatorComparison:
    return OperatorComparison(
        uid=snapshot.uid,
        name=snapshot.name,
        verdict="not in the program",
        parallelism=(snapshot.parallelism, None),
        max_parallelism=(snapshot.max_parallelism, None),
        key=snapshot.key,
    )


def _sources(metadata: CheckpointMetadata, plan: JobPlan) -> Iterator[SourceComparison]:
    stored = [source.uid for source in metadata.sources]
    now = [source.uid for source in plan.sources]
    for uid in stored:
        yield SourceComparison(uid, "continues" if uid in now else "not in the program")
    for uid in now:
        if uid not in stored:
            yield SourceComparison(uid, "new, from its beginning")


def _key(operator: OperatorComparison) -> str:
    compared = operator.key_comparison
    if operator.key is None or compared is None:
        return operator.key or ""
    return f"{operator.key}, {compared.verdict}" + (f": {compared.note}" if compared.note else "")


def _state_rows(operators: Sequence[OperatorComparison]) -> Iterator[tuple[str, ...]]:
    for operator in operators:
        for state in operator.states:
            notes = state.notes or ("",)
            yield f"{operator.uid}.{state.name}", state.kind, state.verdict, notes[0]
            yield from (("", "", "", note) for note in notes[1:])
        if operator.not_compared is not None:
            yield f"{operator.uid}.*", "", "not compared", operator.not_compared


def _change(then: int | None, now: int | None) -> str:
    shown = [str(number) for number in (then, now) if number is not None]
    return " -> ".join(dict.fromkeys(shown))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table, after an empty line; nothing without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return ["", *lines]
