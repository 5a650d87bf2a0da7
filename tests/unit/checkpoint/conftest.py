"""What tests of checkpoints share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.staged_drivers import Driver, driver_maker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def drive(tmp_path: Path) -> Callable[..., Driver]:
    """Makes drivers of the same job."""
    return driver_maker(tmp_path)
