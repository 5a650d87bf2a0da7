from __future__ import annotations

import subprocess
import sys

import holdfast


def test_every_public_name_is_there_once() -> None:
    names = vars(holdfast)["__all__"]
    assert len(names) > 50
    assert names == sorted(set(names))
    for name in names:
        value = getattr(holdfast, name)
        assert name.isupper() or value.__name__ == name


def test_importing_holdfast_loads_neither_spark_nor_a_backend() -> None:
    script = "import sys, holdfast, holdfast.api.streams.data_stream; print(*sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyspark", "lmdb", "rocksdict"} & set(out)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(holdfast, "NoSuchThing")
