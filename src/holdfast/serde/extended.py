"""The extended form of values that plain MessagePack cannot hold exactly.

    0xC1 | MessagePack of the value, with these extension types

    1   integer beyond 64 bits: two's complement, big-endian
    2   datetime, 3 time of day: msgpack [text, fold, zone]
        zone is null, a zone's key, or [offset in microseconds, name or null]
    4   dict: msgpack array of its keys and values in turn

MessagePack never starts with 0xC1, so the two forms cannot be confused. A value is stored
in the extended form if it contains a larger integer, a datetime in a zone other than UTC,
or a time with `fold`.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec.msgpack import Ext

MARK = b"\xc1"
"""First byte of the extended form."""

_INTEGER, _DATETIME, _TIME, _DICT = 1, 2, 3, 4
_KEPT = (datetime, time, bytes, bytearray)

_encode = msgspec.msgpack.Encoder().encode


def extended_encoded(value: Any, order: Literal["deterministic"] | None = None) -> bytes:
    """Extended form of a value; `order` is that of `msgspec.msgpack.Encoder`."""
    plain = msgspec.to_builtins(value, builtin_types=_KEPT, order=order)
    return MARK + _encode(_spread(plain))


def extended_decoded(data: bytes, spec: Any) -> Any:
    """Value of the declared type from its extended form.

    Raises:
        msgspec.ValidationError: The bytes contain a value of another type.
    """
    return msgspec.convert(_decode(data[len(MARK) :]), spec, builtin_types=_KEPT)


def plain_decoded(data: bytes) -> Any:
    """Untyped value of bytes in either form."""
    return _decode(data[len(MARK) :]) if data.startswith(MARK) else _decode(data)


def in_utc(data: bytes) -> bytes:
    """Plain MessagePack of a value in its extended form, with datetimes in UTC.

    Naive datetimes stay naive.

    Raises:
        OverflowError: A datetime is not in the years 1 to 9999 in UTC, or an integer is beyond
            64 bits.
        ValueError: It has a time of day that plain MessagePack cannot hold.
    """
    return _encode(_decode_in_utc(data[len(MARK) :]))


def _spread(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() if not -(1 << 63) <= value < (1 << 64):
            length = value.bit_length() // 8 + 1
            return Ext(_INTEGER, value.to_bytes(length, "big", signed=True))
        case datetime():
            return Ext(_DATETIME, _moment(value))
        case time():
            return Ext(_TIME, _moment(value))
        case dict():
            flat = [_spread(part) for pair in value.items() for part in pair]
            return Ext(_DICT, _encode(flat))
        case list() | tuple() | set() | frozenset():
            return [_spread(item) for item in value]
    return value


def _moment(value: datetime | time) -> bytes:
    text = value.replace(tzinfo=None, fold=0).isoformat()
    return _encode([text, value.fold, _zone(value.tzinfo)])


def _zone(zone: Any) -> Any:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo):
        return zone.key
    offset, *name = zone.__getinitargs__()
    return [offset // timedelta(microseconds=1), *(name or [None])]


def _restored(code: int, data: memoryview) -> Any:
    if code == _INTEGER:
        return int.from_bytes(data, "big", signed=True)
    content = _decode(bytes(data))
    if code == _DICT:
        return _as_dict(content)
    text, fold, zone = content
    cls = datetime if code == _DATETIME else time
    return cls.fromisoformat(text).replace(tzinfo=_as_zone(zone), fold=fold)


def _restored_in_utc(code: int, data: memoryview) -> Any:
    if code == _DICT:
        return _as_dict(_decode_in_utc(bytes(data)))
    value = _restored(code, data)
    if code == _TIME:
        raise ValueError("a time of day with a zone or a fold")
    is_aware = code == _DATETIME and value.tzinfo is not None
    return value.astimezone(UTC) if is_aware else value


def _as_dict(content: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(_as_key, content[::2]), content[1::2], strict=True))


def _as_zone(zone: Any) -> Any:
    if zone is None:
        return None
    if isinstance(zone, str):
        return ZoneInfo(zone)
    micros, name = zone
    offset = timedelta(microseconds=micros)
    return timezone(offset) if name is None else timezone(offset, name)


def _as_key(key: Any) -> Any:
    return tuple(map(_as_key, key)) if isinstance(key, list) else key


_decode = msgspec.msgpack.Decoder(ext_hook=_restored).decode
_decode_in_utc = msgspec.msgpack.Decoder(ext_hook=_restored_in_utc).decode
