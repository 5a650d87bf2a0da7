"""Pickling what workers run, with errors that name the culprit."""

from __future__ import annotations

import pickle
import sys
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.errors import NotSerializableError
from holdfast.spark.class_pickling import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.runtime.plan import LevelPlan


def dump_level(level: LevelPlan) -> bytes:
    """A level, pickled for its tasks; functions of `__main__` and notebooks by value."""
    resolve_main()
    try:
        return dumps(level)
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


def dump_function(part: object, what: str) -> bytes:
    """Anything that goes to workers, pickled; `what` names it in errors."""
    resolve_main()
    try:
        return dumps(part)
    except Exception as error:
        raise _refusal(what, error) from error


class ShippedByValue:
    """What Spark pickles by itself, with parts of the program in it: they go as all others do."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The class, and its attributes as bytes."""
        return _unpacked, (type(self), dump_function(vars(self), f"a {type(self).__name__}"))


def _unpacked(cls: type, attributes: bytes) -> object:
    made: object = object.__new__(cls)
    vars(made).update(pickle.loads(attributes))
    return made


def resolve_main() -> None:
    """Replace postponed annotations in the classes of the program."""
    resolve_annotations(vars(sys.modules["__main__"]).values())


def resolve_annotations(objects: Iterable[object]) -> None:
    """Replace postponed annotations, which are texts, in the classes among `objects`.

    Classes of `__main__` go to workers by value, and there is no `__main__` there in
    which the names in such a text could be looked up.
    """
    for cls in list(objects):
        own = vars(cls).get("__annotations__") if isinstance(cls, type) else None
        if not own or cls.__module__ != "__main__":
            continue
        # A NamedTuple and a TypedDict have made references of the texts.
        if any(isinstance(hint, str | typing.ForwardRef) for hint in own.values()):
            # What cannot be found here is reported when it is needed, if it is.
            with suppress(Exception):
                hints = typing.get_type_hints(cls, include_extras=True)
                own.update({name: hints[name] for name in own})


def _check(part: object, what: str, operator: str) -> None:
    try:
        dumps(part)
    except Exception as error:
        raise _refusal(f"the {what} of {operator}", error) from error


def _refusal(what: str, error: Exception) -> NotSerializableError:
    return NotSerializableError(
        f"{what} cannot be shipped to workers: {type(error).__name__}: {error}. It holds "
        "something that exists in this process only, such as a connection, a lock or a "
        "SparkSession; make that in open() instead, or hand over what it is made from"
    )
