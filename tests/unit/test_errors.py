"""The error tree: drawn as it is, and able to cross a process boundary."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, HoldfastError)
]


def drawn_tree() -> dict[str, str | None]:
    """Every class in the module's docstring, with the class it is drawn under."""
    assert errors.__doc__ is not None
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ((?:[│ ]   )*)(├── |└── )?(\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + bool(match[2])
        parents[match[3]] = above[depth - 1] if depth else None
        above[depth:] = [match[3]]
    return parents


def test_the_drawn_tree_holds_exactly_the_classes_under_their_parents():
    root = HoldfastError.__name__
    actual: dict[str, str | None] = {
        cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES if cls is not HoldfastError
    }
    assert drawn_tree() == {root: None, **actual}


def test_the_drawn_tree_keeps_the_order_of_the_module():
    source = inspect.getsource(errors)
    assert list(drawn_tree()) == re.findall(r"^class (\w+)\(", source, flags=re.MULTILINE)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_is_the_same_after_pickling(cls: type[HoldfastError]):
    error = cls("operator 'count' failed in subtask 1; restart the job")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert copy.args == error.args
    assert str(copy) == str(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_keeps_its_notes_after_pickling(cls: type[HoldfastError]):
    error = cls("a store is full")
    error.add_note("subtask 3")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["subtask 3"]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_says_what_it_means(cls: type[HoldfastError]):
    assert cls.__name__.endswith("Error")
    assert cls.__doc__
    assert cls.__doc__.endswith(".")
