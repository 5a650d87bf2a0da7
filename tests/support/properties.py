"""Properties are searched with few examples in every run, and with many in the slow tests."""

from __future__ import annotations

import pytest


def searched(few: int, many: int) -> pytest.MarkDecorator:
    """Gives a test the number of `examples` to try: few, and many in a variant marked slow."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
