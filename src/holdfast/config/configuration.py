"""Settings by Flink's keys.

    >>> conf = Configuration({"parallelism.default": 4})
    >>> conf.get(PARALLELISM)
    4

Durations are texts ("500 ms", "10 s", "2 min"), timedeltas or milliseconds; sizes are texts
("20 kb", "1 mb") or bytes. Keys of older Flink releases are accepted with a warning that names the
new key. Options of Flink without a counterpart are accepted with a warning, too.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from holdfast.config.checkpoint_options import CHECKPOINT_OPTIONS
from holdfast.config.options import (
    ConfigOption,
    V,
    at_least,
    boolean,
    choice,
    declared_options,
    duration_ms,
    lasting,
    member,
    optional,
    path,
    size_bytes,
    text,
)
from holdfast.config.registry_options import REGISTRY_OPTIONS
from holdfast.config.rest_options import REST_OPTIONS
from holdfast.config.restart_options import RESTART_OPTIONS
from holdfast.errors import ConfigurationError, UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RuntimeExecutionMode(Enum):
    """Whether a job runs as a stream or in one pass."""

    STREAMING = "STREAMING"
    """Epoch after epoch; results are updated as data arrives."""
    BATCH = "BATCH"
    """One pass over bounded input; aggregates emit only their final result."""
    AUTOMATIC = "AUTOMATIC"
    """BATCH if every source is bounded, else STREAMING."""


def _job_id(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
        raise ValueError("expected an id of 1 to 64 letters, digits, _ and -")
    return value


PARALLELISM: ConfigOption[int | None] = ConfigOption(
    "parallelism.default",
    optional(at_least(1)),
    None,
    "Parallelism of operators that set none; Spark's default parallelism if not given.",
)
MAX_PARALLELISM: ConfigOption[int | None] = ConfigOption(
    "pipeline.max-parallelism",
    optional(at_least(1)),
    None,
    "Number of key groups; derived from the parallelism if not given.",
)
STATE_BACKEND: ConfigOption[str] = ConfigOption(
    "state.backend.type",
    choice("hashmap", "rocksdb"),
    "hashmap",
    "Where local state is kept: hashmap (memory-mapped) or rocksdb (beyond memory).",
    aliases=("state.backend",),
)
LOCAL_STATE_DIR: ConfigOption[str | None] = ConfigOption(
    "state.local-dir",
    optional(path),
    None,
    "Directory on every worker for local state; under Spark's local directory if not given.",
)
RUNTIME_MODE: ConfigOption[RuntimeExecutionMode] = ConfigOption(
    "execution.runtime-mode",
    member(RuntimeExecutionMode),
    RuntimeExecutionMode.STREAMING,
    "STREAMING, BATCH or AUTOMATIC.",
)
AUTO_GENERATE_UIDS: ConfigOption[bool] = ConfigOption(
    "pipeline.auto-generate-uids",
    boolean,
    True,
    "Whether a stateful operator without a uid gets one from its place in the graph.",
)
JOB_NAME: ConfigOption[str] = ConfigOption(
    "pipeline.name", text, "holdfast-job", "Name of the job if execute() gets none."
)
EPOCH_INTERVAL: ConfigOption[int] = ConfigOption(
    "execution.epoch.interval",
    duration_ms,
    0,
    "Minimum time from the start of one epoch to the next; 0 starts each when the last has ended.",
)
MAX_EVENTS_PER_EPOCH: ConfigOption[int | None] = ConfigOption(
    "execution.epoch.max-events",
    optional(at_least(1)),
    None,
    "Maximum events per epoch from a source that can limit them: a collection, a generator.",
)
AVAILABLE_NOW: ConfigOption[bool] = ConfigOption(
    "execution.available-now",
    boolean,
    False,
    "Process everything available at start-up, then finish, even if a source is unbounded.",
)
CANCELLATION_TIMEOUT: ConfigOption[int] = ConfigOption(
    "task.cancellation.timeout",
    lasting(10),
    180_000,
    "Time that an ending job waits for sinks and listeners that do not answer, at least 10 ms. "
    "After that it ends without them; their unpublished output stays pending.",
)
KEPT_MEMORY: ConfigOption[int] = ConfigOption(
    "task.kept-memory.max",
    size_bytes,
    1 << 30,
    "Memory of a Python worker above which it closes functions and drops cached state between "
    "epochs, least recently used first. With 0 it keeps nothing.",
)
PROGRESS: ConfigOption[str] = ConfigOption(
    "execution.progress",
    choice("auto", "on", "off"),
    "auto",
    "Whether execute() shows a line of progress on standard error: auto does on a terminal.",
)
JOB_ID: ConfigOption[str | None] = ConfigOption(
    "pipeline.job-id",
    optional(_job_id),
    None,
    "Permanent id of the job: letters, digits, _ and -, at most 64. A job with the id of a job "
    "whose driver was lost continues from its newest checkpoint. A new id if not given.",
)

OPTIONS: Final[dict[str, ConfigOption[Any]]] = {
    option.key: option
    for option in (
        *declared_options(globals()),
        *CHECKPOINT_OPTIONS,
        *RESTART_OPTIONS,
        *REGISTRY_OPTIONS,
        *REST_OPTIONS,
    )
}
"""All options by key."""

_ALIASES: Final = {alias: option for option in OPTIONS.values() for alias in option.aliases}


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning about a setting that is accepted."""

    message: str
    category: type[Warning]


@dataclass(frozen=True, slots=True)
class Setting:
    """An option with a value that it accepts."""

    option: ConfigOption[Any]
    value: Any
    notices: tuple[Notice, ...] = ()


def read_setting(key: str | ConfigOption[Any], value: Any) -> Setting:
    """Find the option of a key, and check its value.

    Raises:
        UnknownOptionError: No option has that key.
        ConfigurationError: The option does not accept the value.
    """
    option = key if isinstance(key, ConfigOption) else _option(key)
    name = option.key if isinstance(key, ConfigOption) else key
    try:
        parsed = option.parse(value)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{name}: {error}, got {value!r}") from None
    return Setting(option, parsed, tuple(_notices(option, name, parsed)))


def _notices(option: ConfigOption[Any], key: str, value: object) -> Iterator[Notice]:
    if key != option.key:
        yield Notice(f"{key} is deprecated; use {option.key}", DeprecationWarning)
    if option.ignored and value != option.default:
        yield Notice(f"{key} has no effect: Holdfast accepts it and ignores it", UserWarning)


def _option(key: str) -> ConfigOption[Any]:
    option = OPTIONS.get(key) or _ALIASES.get(key)
    if option is None:
        near = difflib.get_close_matches(str(key), OPTIONS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(OPTIONS)}"
        raise UnknownOptionError(f"there is no option {key!r}; {hint}")
    return option


class Configuration:
    """A set of settings; a key that does not exist is an error."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """Settings from a mapping of keys to values."""
        self._values: dict[str, Any] = {}
        self._submitted: dict[str, Any] = {}
        """What `holdfast run` has set, and the program has not changed."""
        for key, value in (settings or {}).items():
            self._warn_and_take(read_setting(key, value))

    def _warn_and_take(self, setting: Setting) -> Configuration:
        for notice in setting.notices:
            # Level 3 is the line that called `set` or created this configuration.
            warnings.warn(notice.message, notice.category, stacklevel=3)
        return self.take(setting)

    def take(self, setting: Setting) -> Configuration:
        """Set an option that was read before, without warnings; returns self."""
        self._values[setting.option.key] = setting.value
        return self

    def set(self, key: str | ConfigOption[Any], value: Any) -> Configuration:
        """Set one option; returns self.

        Raises:
            UnknownOptionError: No option has that key.
            ConfigurationError: The option does not accept the value.
        """
        setting = read_setting(key, value)
        self.overrule(setting.option, setting.value)
        return self._warn_and_take(setting)

    def mark_submitted(self, setting: Setting) -> None:
        """Note that `holdfast run` has set an option, so that `overrule` warns."""
        self._submitted[setting.option.key] = setting.value

    def overrule(self, option: ConfigOption[Any], value: object) -> None:
        """Warn if the program uses another value than `holdfast run` has set."""
        given = self._submitted.pop(option.key, value)
        if given != value:
            warnings.warn(
                f"the program sets {option.key} to {value!r}, so {given!r} from `holdfast run` "
                "has no effect",
                UserWarning,
                stacklevel=_level_of_the_program(),
            )

    def get(self, option: ConfigOption[V]) -> V:
        """Value of an option, or its default."""
        value: V = self._values.get(option.key, option.default)
        return value

    def contains(self, option: ConfigOption[Any]) -> bool:
        """Whether the option was set."""
        return option.key in self._values

    def update(self, other: Configuration) -> Configuration:
        """Set all options that are set in `other`; returns self."""
        for key, value in other._values.items():
            self.overrule(OPTIONS[key], value)
            self._values[key] = value
        return self

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Keys and values that were set."""
        return iter(self._values.items())

    def __repr__(self) -> str:
        """The settings, as a mapping."""
        return f"Configuration({self._values!r})"


def _level_of_the_program() -> int:
    """The `stacklevel` with which the caller's warning names the line of the user's program."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("holdfast."):
        level, frame = level + 1, frame.f_back
    return level
