"""Checks that all subtasks of an operator have keys of one type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import KeyTypeError
from holdfast.serde.key_shapes import KeyShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.job.model import JobPlan
    from holdfast.runtime.report import KeyReport, TaskReport


class KeyAgreement:
    """Compares the key types that tasks report, epoch after epoch.

    Keys of different types may reach different subtasks, where each looks consistent. Tasks get
    the known types, and refuse keys of another type themselves. So only the tasks of one epoch
    have to be compared.
    """

    def __init__(self, plan: JobPlan, known: Mapping[str, str]) -> None:
        """Check the operators of `plan`; `known` are the key shapes of restored state, by uid."""
        self._operators = {
            uid: f"operator {operator.name!r} (uid {uid!r})"
            for uid, operator in plan.operators.items()
        }
        self._shapes = {uid: name for uid, name in known.items() if uid in self._operators}

    @property
    def shapes(self) -> dict[str, str]:
        """Names of the known key shapes, by uid."""
        return dict(self._shapes)

    def check(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        """Check the reports of an epoch's tasks.

        Raises:
            KeyTypeError: The keys of an operator have different types.
        """
        found: dict[str, tuple[KeyShape, TaskReport]] = {}
        stored: set[str] = set()
        for report in reports:
            for uid, keys in report.keys.items():
                shape, first = found.setdefault(uid, (KeyShape(keys.shape), report))
                joined = shape.joined(KeyShape(keys.shape))
                if joined is None:
                    raise self._disagreement(epoch, uid, first, report)
                found[uid] = (joined, first)
                if keys.stored:
                    stored.add(uid)
        self._shapes |= {uid: found[uid][0].name for uid in stored}

    def _disagreement(
        self, epoch: int, uid: str, first: TaskReport, other: TaskReport
    ) -> KeyTypeError:
        here = " and ".join(_described(one.subtask, one.keys[uid]) for one in (first, other))
        return KeyTypeError(
            f"{self._operators[uid]}: the keys of an operator have one type, but in epoch {epoch} "
            f"they are {here}; let the key function always return the same type"
        )


def _described(subtask: int, keys: KeyReport) -> str:
    example = f", such as {keys.example}" if keys.example else ""
    return f"{keys.shape} in subtask {subtask}{example}"
