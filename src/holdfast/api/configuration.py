"""Settings by Flink's keys, each with a type, a default and a sentence.

    >>> conf = Configuration({"parallelism.default": 4})
    >>> conf.get(PARALLELISM)
    4

Durations are given as Flink gives them ("500 ms", "10 s", "2 min") or in milliseconds.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.errors import ConfigurationError, UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

V = TypeVar("V")
"""Type of an option's value."""


class RuntimeExecutionMode(Enum):
    """Whether a job runs as a stream or in one pass."""

    STREAMING = "STREAMING"
    """Epoch after epoch; results are updated as data comes."""
    BATCH = "BATCH"
    """One pass over bounded input; aggregates give their final result only."""
    AUTOMATIC = "AUTOMATIC"
    """BATCH if every source is bounded, else STREAMING."""


@dataclass(frozen=True)
class ConfigOption(Generic[V]):
    """One setting: its key, how its value is read, its default, what it does."""

    key: str
    parse: Callable[[Any], V]
    default: V
    description: str


def _int(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("an integer is wanted")


def _positive(value: object) -> int:
    number = _int(value)
    if number < 1:
        raise ValueError("a number of at least 1 is wanted")
    return number


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false is wanted")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string is wanted")
    return value


def _choice(*choices: str) -> Callable[[Any], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)} is wanted")
        return str(value)

    return parse


_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def _duration_ms(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError('a duration such as "500 ms", "10 s" or "2 min" is wanted')
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def _mode(value: object) -> RuntimeExecutionMode:
    if isinstance(value, RuntimeExecutionMode):
        return value
    try:
        return RuntimeExecutionMode[str(value).upper()]
    except KeyError:
        raise ValueError("one of STREAMING, BATCH, AUTOMATIC is wanted") from None


def _optional(parse: Callable[[Any], V]) -> Callable[[Any], V | None]:
    return lambda value: None if value is None else parse(value)


PARALLELISM: ConfigOption[int | None] = ConfigOption(
    "parallelism.default",
    _optional(_positive),
    None,
    "Parallelism of operators that set none; Spark's default parallelism if not given.",
)
MAX_PARALLELISM: ConfigOption[int | None] = ConfigOption(
    "pipeline.max-parallelism",
    _optional(_positive),
    None,
    "Number of key groups; derived from the parallelism if not given.",
)
STATE_BACKEND: ConfigOption[str] = ConfigOption(
    "state.backend.type",
    _choice("hashmap", "rocksdb"),
    "hashmap",
    "Where local state is kept: hashmap (memory-mapped) or rocksdb (beyond memory).",
)
LOCAL_STATE_DIR: ConfigOption[str | None] = ConfigOption(
    "state.local-dir",
    _optional(_text),
    None,
    "Directory on every worker for local state; under Spark's local directory if not given.",
)
RUNTIME_MODE: ConfigOption[RuntimeExecutionMode] = ConfigOption(
    "execution.runtime-mode",
    _mode,
    RuntimeExecutionMode.STREAMING,
    "STREAMING, BATCH or AUTOMATIC.",
)
AUTO_GENERATE_UIDS: ConfigOption[bool] = ConfigOption(
    "pipeline.auto-generate-uids",
    _bool,
    True,
    "Whether a stateful operator without a uid gets one from its place in the graph.",
)
JOB_NAME: ConfigOption[str] = ConfigOption(
    "pipeline.name", _text, "holdfast-job", "Name of the job where execute() is given none."
)
EPOCH_INTERVAL: ConfigOption[int] = ConfigOption(
    "execution.epoch.interval",
    _duration_ms,
    0,
    "Least time from the start of one epoch to the next; 0 starts each when the last has ended.",
)
MAX_EVENTS_PER_EPOCH: ConfigOption[int | None] = ConfigOption(
    "execution.epoch.max-events",
    _optional(_positive),
    None,
    "Most events an epoch takes from a source that can limit them: a collection, a generator.",
)
AVAILABLE_NOW: ConfigOption[bool] = ConfigOption(
    "execution.available-now",
    _bool,
    False,
    "Process all there is when the job starts, then finish, though a source be unbounded.",
)
CHECKPOINT_INTERVAL: ConfigOption[int | None] = ConfigOption(
    "execution.checkpointing.interval",
    _optional(_duration_ms),
    None,
    "Time from one checkpoint to the next. Checkpoints are not taken by this release yet.",
)

OPTIONS: dict[str, ConfigOption[Any]] = {
    option.key: option
    for option in (
        PARALLELISM,
        MAX_PARALLELISM,
        STATE_BACKEND,
        LOCAL_STATE_DIR,
        RUNTIME_MODE,
        AUTO_GENERATE_UIDS,
        JOB_NAME,
        EPOCH_INTERVAL,
        MAX_EVENTS_PER_EPOCH,
        AVAILABLE_NOW,
        CHECKPOINT_INTERVAL,
    )
}
"""Every option there is, by its key."""


class Configuration:
    """A set of settings; a key that does not exist is an error."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """Settings from a mapping of keys to values."""
        self._values: dict[str, Any] = {}
        for key, value in (settings or {}).items():
            self.set(key, value)

    def set(self, key: str | ConfigOption[Any], value: Any) -> Configuration:
        """Set one option, by its key or itself; returns self."""
        option = key if isinstance(key, ConfigOption) else _option(key)
        try:
            self._values[option.key] = option.parse(value)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"{option.key}: {error}, not {value!r}") from None
        return self

    def get(self, option: ConfigOption[V]) -> V:
        """Value of an option, or its default."""
        value: V = self._values.get(option.key, option.default)
        return value

    def contains(self, option: ConfigOption[Any]) -> bool:
        """Whether the option was set."""
        return option.key in self._values

    def update(self, other: Configuration) -> Configuration:
        """Take over all that is set in `other`; returns self."""
        self._values.update(other._values)
        return self

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Keys and values that were set."""
        return iter(self._values.items())

    def __repr__(self) -> str:
        """The settings, as a mapping."""
        return f"Configuration({self._values!r})"


def _option(key: str) -> ConfigOption[Any]:
    option = OPTIONS.get(key)
    if option is None:
        near = difflib.get_close_matches(str(key), OPTIONS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(OPTIONS)}"
        raise UnknownOptionError(f"there is no option {key!r}; {hint}")
    return option
