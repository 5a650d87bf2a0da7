from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import holdfast

SHELVES = vars(holdfast)["_SHELVES"]


def test_every_public_name_is_there_once() -> None:
    names = vars(holdfast)["__all__"]
    assert 50 < len(names) < 70
    assert names == sorted(set(names))
    for name in names:
        value = getattr(holdfast, name)
        assert name.isupper() or value.__name__ == name


def test_importing_holdfast_loads_neither_spark_nor_a_backend() -> None:
    loaded = "import sys, holdfast, holdfast.windows, holdfast.sinks, holdfast.functions"
    script = f"{loaded}, holdfast.api.streams.data_stream; print(*sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyspark", "lmdb", "rocksdict"} & set(out)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(holdfast, "NoSuchThing")
    assert not hasattr(holdfast, "_no_such_thing")


@pytest.mark.parametrize("shelf", [shelf for shelf in SHELVES if shelf != "errors"])
def test_every_name_of_a_shelf_is_on_that_shelf_alone(shelf: str) -> None:
    module = import_module(f"holdfast.{shelf}")
    assert getattr(holdfast, shelf) is module
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert name not in vars(holdfast)["__all__"]
        assert getattr(module, name).__name__ == name
        with pytest.raises(ImportError, match=f"from holdfast.{shelf} import {name}$"):
            getattr(holdfast, name)


def test_an_import_of_a_name_on_a_shelf_says_which() -> None:
    with pytest.raises(ImportError, match=r"is in holdfast\.windows"):
        exec("from holdfast import TumblingEventTimeWindows")
    with pytest.raises(ImportError, match=r"is in holdfast\.errors"):
        exec("from holdfast import StateMigrationError")
