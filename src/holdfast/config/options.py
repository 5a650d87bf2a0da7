"""Configuration options, and parsers of their values.

A parser takes a text from a file or a value from a program. It returns the parsed value, or raises
`ValueError` with the expected form. Parsers accept their own results.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum

V = TypeVar("V")
"""Type of an option's value."""

E = TypeVar("E", bound="Enum")
"""Type of an option's value that is a member of an enum."""

PathLike: TypeAlias = str | os.PathLike[str]
"""A path or URL as text, or a path object."""

DurationLike: TypeAlias = int | str | timedelta
"""Milliseconds, a text as Flink writes it ("10 s"), or a `timedelta`."""

TimeoutLike: TypeAlias = float | str | timedelta
"""Seconds, as Python's own timeouts are, a text as Flink writes it ("10 s"), or a `timedelta`."""


@dataclass(frozen=True)
class ConfigOption(Generic[V]):
    """An option: its key, parser, default and description."""

    key: str
    parse: Callable[[Any], V]
    default: V
    description: str
    aliases: tuple[str, ...] = ()
    """Older keys, still accepted with a warning."""
    ignored: bool = False
    """Whether it is checked but has no effect."""


def integer(value: object) -> int:
    """A whole number."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("expected an integer")


def number(value: object) -> float:
    """A finite number."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            parsed = float(value)
        except (ValueError, OverflowError):
            parsed = math.nan
        if math.isfinite(parsed):
            return parsed
    raise ValueError("expected a number")


def boolean(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("expected true or false")


def text(value: object) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected a non-empty string")
    return value


def path(value: object) -> str:
    """A path or URL of a directory, unchanged."""
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str) or not given.strip():
        raise ValueError('expected a path such as "/data/checkpoints" or "s3://bucket/checkpoints"')
    return given


def choice(*choices: str) -> Callable[[Any], str]:
    """One of a few strings."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return str(value)

    return parse


def member(kind: type[E]) -> Callable[[Any], E]:
    """A member of an enum, or its name in any case."""

    def parse(value: object) -> E:
        if isinstance(value, kind):
            return value
        name = value.strip().upper().replace("-", "_") if isinstance(value, str) else None
        for candidate in kind:
            if candidate.name == name:
                return candidate
        raise ValueError(f"expected one of {', '.join(each.name for each in kind)}")

    return parse


_UNITS_MS: Final = {
    unit: milliseconds
    for units, milliseconds in (
        ("ms milli millis millisecond milliseconds", 1),
        ("s sec secs second seconds", 1000),
        ("m min minute minutes", 60_000),
        ("h hour hours", 3_600_000),
        ("d day days", 86_400_000),
    )
    for unit in units.split()
}


def duration_ms(value: object) -> int:
    """Milliseconds: a whole number, a text such as "10 s", or a `timedelta`."""
    if isinstance(value, timedelta):
        value = value // timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    amount = _amount(value, _UNITS_MS, "ms")
    if amount is None:
        raise ValueError('expected a duration such as "500 ms", "10 s" or "2 min"')
    return amount


def signed_duration_ms(value: object) -> int:
    """Milliseconds, possibly negative: a number, a `timedelta`, or a text such as "-10 s"."""
    if isinstance(value, timedelta) and value < timedelta(0):
        return -duration_ms(-value)
    if isinstance(value, int) and value < 0:
        return -duration_ms(-value)
    if isinstance(value, str) and value.strip().startswith("-"):
        return -duration_ms(value.strip()[1:])
    return duration_ms(value)


def timeout_seconds(value: TimeoutLike | None) -> float | None:
    """Seconds to wait; None waits without limit.

    Raises:
        ConfigurationError: It is none of a number, a text such as "10 s" and a `timedelta`.
    """
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return argument(duration_ms, value, "timeout") / 1000


_UNITS_BYTES: Final = {
    unit: 1 << shift
    for units, shift in (
        ("b bytes", 0),
        ("k kb kibibytes", 10),
        ("m mb mebibytes", 20),
        ("g gb gibibytes", 30),
        ("t tb tebibytes", 40),
    )
    for unit in units.split()
}


def size_bytes(value: object) -> int:
    """Bytes: a whole number, or a text such as "20 kb", in steps of 1024 as in Flink."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    amount = _amount(value, _UNITS_BYTES, "b")
    if amount is None:
        raise ValueError('expected a size such as "4096", "20 kb" or "1 mb"')
    return amount


def _amount(value: object, units: dict[str, int], unit: str) -> int | None:
    match = (
        re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower()) if isinstance(value, str) else None
    )
    factor = None if match is None else units.get(match[2] or unit)
    return None if match is None or factor is None else int(match[1]) * factor


def optional(parse: Callable[[Any], V]) -> Callable[[Any], V | None]:
    """A parser that also accepts None, which leaves the option unset."""
    return lambda value: None if value is None else parse(value)


def bounded(
    parse: Callable[[Any], V], accept: Callable[[V], bool], wanted: str
) -> Callable[[Any], V]:
    """A parser that also requires `accept`; otherwise the error says what was expected."""

    def checked(value: object) -> V:
        parsed = parse(value)
        if not accept(parsed):
            raise ValueError(f"expected {wanted}")
        return parsed

    return checked


def at_least(least: int) -> Callable[[Any], int]:
    """A whole number with a lower bound."""
    return bounded(integer, lambda given: given >= least, f"a whole number of at least {least}")


def lasting(least_ms: int) -> Callable[[Any], int]:
    """A duration with a lower bound."""
    return bounded(
        duration_ms, lambda given: given >= least_ms, f"a duration of at least {least_ms} ms"
    )


def given_by(option: ConfigOption[V]) -> V:
    """A field of a dataclass, with the default and the meaning of an option."""
    return field(default=option.default, metadata={"option": option})


def options_of(kind: Any) -> dict[str, ConfigOption[Any]]:
    """The options that give the fields of a dataclass, by the names of the fields."""
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


def refused_field(owner: object, name: str, problem: str) -> ConfigurationError:
    """The error for a field of a dataclass whose value is not as expected."""
    value = getattr(owner, name)
    return ConfigurationError(f"{type(owner).__name__}: {name}: {problem}, got {value!r}")


def argument(parse: Callable[[Any], V], value: object, what: str) -> V:
    """The parsed value of an argument; ConfigurationError names `what` if it has no valid one."""
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}, got {value!r}") from error


def declared_options(module: Mapping[str, Any]) -> tuple[ConfigOption[Any], ...]:
    """The options that a module declares, in that order; `module` is its `globals()`."""
    return tuple(value for value in module.values() if isinstance(value, ConfigOption))
