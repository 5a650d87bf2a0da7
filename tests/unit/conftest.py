"""What tests of several packages share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.storage.file_system import FileSystemFiles
from tests.support.programs import Program
from tests.support.staged import forget

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> FileSystemFiles:
    """The empty directory of a job."""
    return FileSystemFiles(str(tmp_path / "job"))


@pytest.fixture
def program() -> Program:
    """A program without any streams."""
    return Program()


@pytest.fixture(autouse=True)
def _empty_log(request: pytest.FixtureRequest) -> None:
    """A test begins with an empty `LOG`, if its module has one."""
    getattr(request.module, "LOG", []).clear()


@pytest.fixture
def no_calls() -> None:
    """No sink of `tests.support.staged` remembers a call."""
    forget()
