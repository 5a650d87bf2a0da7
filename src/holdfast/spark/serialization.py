"""Pickling what workers run, with errors that name the culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import cloudpickle

from holdfast.errors import NotSerializableError

if TYPE_CHECKING:
    from holdfast.runtime.plan import LevelPlan


def dump_level(level: LevelPlan) -> bytes:
    """A level, pickled for its tasks; functions of `__main__` and notebooks by value."""
    try:
        return _dumps(level)
    except Exception as error:
        for operator in level.operators:
            parts = [("function", operator.function)]
            if operator.key is not None:
                parts.append(("key function", operator.key.selector))
            for what, part in parts:
                _check(part, what, f"operator {operator.name!r} (uid {operator.uid!r})")
        raise NotSerializableError(
            f"level {level.index} of the job cannot be pickled: {error}"
        ) from error


def _check(part: object, what: str, operator: str) -> None:
    try:
        _dumps(part)
    except Exception as error:
        raise NotSerializableError(
            f"the {what} of {operator} cannot be shipped to workers: {type(error).__name__}: "
            f"{error}. It holds something that exists in this process only, such as a connection, "
            "a lock or a SparkSession; make that in open() instead, or hand over what it is made "
            "from"
        ) from error


def _dumps(value: object) -> bytes:
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data
