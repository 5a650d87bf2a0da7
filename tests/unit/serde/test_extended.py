"""Values in the extended form as plain MessagePack, for programs that know no zones."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from holdfast.serde.extended import extended_encoded, in_utc

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 15, 12)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (NOON.replace(tzinfo=BERLIN), NOON.replace(hour=11, tzinfo=UTC)),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (
            datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
            datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
        ),
        (datetime(1800, 1, 1, tzinfo=BERLIN), datetime(1799, 12, 31, 23, 6, 32, tzinfo=UTC)),
        (NOON.replace(fold=1), NOON),
        (
            {"a": [{NOON.replace(tzinfo=BERLIN): 1}, None], (1, b"b"): {}},
            {"a": [{NOON.replace(hour=11, tzinfo=UTC): 1}, None], (1, b"b"): {}},
        ),
    ],
    ids=str,
)
def test_datetimes_of_other_zones_are_in_utc_and_naive_ones_stay_naive(
    value: Any, plain: Any
) -> None:
    assert in_utc(extended_encoded(value)) == msgspec.msgpack.encode(plain)


@pytest.mark.parametrize(
    "value",
    [
        [2**70, NOON],
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        {"a": time(1, fold=1)},
        time(1, tzinfo=BERLIN),
    ],
    ids=str,
)
def test_what_plain_messagepack_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises((OverflowError, ValueError)):
        in_utc(extended_encoded(value))
