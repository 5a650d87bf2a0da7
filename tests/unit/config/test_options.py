"""Values that the public API takes in several forms."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.config.options import timeout_seconds
from holdfast.errors import ConfigurationError


@pytest.mark.parametrize("given", [10, 10.0, "10 s", "10000 ms", timedelta(seconds=10)])
def test_a_timeout_is_a_number_of_seconds_a_text_or_a_timedelta(given: Any) -> None:
    assert timeout_seconds(given) == 10


def test_without_a_timeout_the_wait_has_no_limit() -> None:
    assert timeout_seconds(None) is None


@pytest.mark.parametrize("given", ["soon", True, []])
def test_any_other_timeout_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout: .*a duration such as"):
        timeout_seconds(given)
