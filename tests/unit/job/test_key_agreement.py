"""The driver compares what tasks report of their keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import KeyTypeError
from holdfast.job.key_agreement import KeyAgreement
from holdfast.runtime.report import KeyReport, TaskReport


def plan_of(*uids: str) -> Any:
    return SimpleNamespace(operators={uid: SimpleNamespace(name=uid.upper()) for uid in uids})


def report(subtask: int, **keys: KeyReport) -> TaskReport:
    return TaskReport(3, 1, subtask, 0, "host", "executor", {}, {}, keys=keys)


def keys(shape: str, example: str = "", *, stored: bool = True) -> KeyReport:
    return KeyReport(shape, example, stored)


def test_keys_of_different_types_on_different_subtasks_are_refused_with_examples() -> None:
    agreement = KeyAgreement(plan_of("op", "other"), {})
    ones = report(0, op=keys("int", "key 7 of row (7,)"), other=keys("str"))
    others = report(1, op=keys("str", "key 'x' of row ('x',)"), other=keys("str"))
    with pytest.raises(KeyTypeError) as caught:
        agreement.check(3, [ones, others])
    text = str(caught.value)
    assert text.startswith("operator 'OP' (uid 'op'): ")
    assert "in epoch 3 they are int in subtask 0, such as key 7 of row (7,)" in text
    assert "and str in subtask 1, such as key 'x' of row ('x',)" in text
    assert text.endswith("let the key function always return the same type")
    assert agreement.shapes == {}


@pytest.mark.parametrize(
    ("one", "other"), [("int", "bool"), ("int", "float"), ("tuple[int]", "int")]
)
def test_types_that_python_takes_for_one_are_told_apart(one: str, other: str) -> None:
    agreement = KeyAgreement(plan_of("op"), {})
    with pytest.raises(KeyTypeError, match="operator 'OP'"):
        agreement.check(1, [report(0, op=keys(one)), report(1), report(2, op=keys(other))])


def test_components_that_were_null_so_far_fit_those_of_other_subtasks() -> None:
    agreement = KeyAgreement(plan_of("op"), {})
    shapes = ["tuple[?, str]", "tuple[?, ?]", "tuple[int, ?]"]
    agreement.check(1, [report(i, op=keys(shape)) for i, shape in enumerate(shapes)])
    assert agreement.shapes == {"op": "tuple[int, str]"}
    with pytest.raises(KeyTypeError):
        agreement.check(2, [*(report(i, op=keys(s)) for i, s in enumerate(shapes)), report(
            3, op=keys("tuple[bool, ?]"))])  # fmt: skip


def test_tasks_are_told_of_keys_under_which_state_is_kept_and_of_no_others() -> None:
    agreement = KeyAgreement(plan_of("op", "stateless"), {"op": "int", "gone": "str"})
    assert agreement.shapes == {"op": "int"}
    agreement.check(1, [report(0, stateless=keys("str", stored=False))])
    assert agreement.shapes == {"op": "int"}
    agreement.check(2, [report(0, op=keys("int", stored=False), stateless=keys("str"))])
    assert agreement.shapes == {"op": "int", "stateless": "str"}
