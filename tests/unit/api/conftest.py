"""What tests of streams share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import DataStream
    from tests.support.programs import Program


@pytest.fixture
def rows(program: Program) -> DataStream:
    """A stream of rows with a string `k` and a number `n`."""
    return program.source("k string, n bigint")
