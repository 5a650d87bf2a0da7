"""What workers print when Spark hangs up while they write."""

from __future__ import annotations

import importlib.util
import traceback
from types import SimpleNamespace

import pytest

from holdfast.runtime.worker import HangUps


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError()])
def test_a_worker_that_is_stopped_while_it_writes_prints_nothing(
    error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except OSError:
        HangUps.print_exc()
    assert capsys.readouterr().err == ""


def test_other_errors_of_a_worker_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise OSError("no space")
    except OSError:
        HangUps.print_exc()
        assert "no space" in HangUps.format_exc()
    assert "OSError: no space" in capsys.readouterr().err


def test_only_the_daemon_of_spark_is_changed() -> None:
    spec = importlib.util.find_spec("pyspark.daemon")
    main = SimpleNamespace(__spec__=spec, traceback=traceback)
    HangUps.leave_out(main)
    assert main.traceback is HangUps
    others = SimpleNamespace(__spec__=None, traceback=traceback), SimpleNamespace()
    for other in others:
        HangUps.leave_out(other)
    assert others[0].traceback is traceback
    assert not hasattr(others[1], "traceback")
