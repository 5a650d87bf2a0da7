"""Settings from a file: `holdfast.yaml`, or the file in HOLDFAST_CONF.

Keys may be written flat or nested, as in Flink 2:

    execution.checkpointing.interval: 10 s
    restart-strategy:
      type: fixed-delay
      fixed-delay:
        attempts: 3
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from holdfast.config.configuration import Configuration, Setting, read_setting
from holdfast.config.submission import current_submission
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_NAME: Final = "holdfast.yaml"
"""The file that is read from the working directory."""

FILE_VARIABLE: Final = "HOLDFAST_CONF"
"""The environment variable that names another file."""

# Python records shown warnings here, so that several environments do not repeat them.
_SHOWN: Final[dict[str | tuple[str, type[Warning], int], int]] = {}


def load_configuration() -> Configuration:
    """Read the file in HOLDFAST_CONF, or `holdfast.yaml` in the working directory if it exists.

    Settings that `holdfast run` was called with take precedence over the file.

    Raises:
        ConfigurationError: The file in HOLDFAST_CONF does not exist, or a file is invalid.
    """
    submission = current_submission()
    configuration = _from_file()
    return configuration if submission is None else submission.apply(configuration)


def _from_file() -> Configuration:
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return read_configuration(Path(named))
    file = Path.cwd() / FILE_NAME
    return read_configuration(file) if file.is_file() else Configuration()


def read_configuration(file: Path) -> Configuration:
    """Read the settings of a YAML file.

    Raises:
        ConfigurationError: The file cannot be read, or a key or a value is wrong; the message
            names the file and the line.
    """
    configuration = Configuration()
    seen: dict[str, _Entry] = {}
    for entry in _entries(file, _document(file)):
        setting = _setting(file, entry)
        earlier = seen.setdefault(setting.option.key, entry)
        if earlier is not entry:
            raise _wrong(file, entry.line, f"{entry.key} was set in line {earlier.line} already")
        configuration.take(setting)
    return configuration


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key, its value and its line in the file."""

    key: str
    value: str
    line: int


def _document(file: Path) -> yaml.Node | None:
    try:
        # The base loader keeps values as texts. The others read `off` as false and `1_0` as ten.
        text = file.read_text(encoding="utf-8")
        document: yaml.Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
        return document
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no configuration file {file}; correct or unset {FILE_VARIABLE}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration file {file}: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise _wrong(file, line, f"not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file} is not valid YAML: {error}") from None


def _entries(file: Path, node: yaml.Node | None, prefix: str = "") -> Iterator[_Entry]:
    """The settings below a node, with the keys of nested ones joined by dots."""
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(file, line, f"{prefix or 'the file'}: expected keys and values")
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _wrong(file, key_node.start_mark.line + 1, "a key must be a text")
        key = f"{prefix}.{key_node.value}" if prefix else key_node.value
        if isinstance(value_node, yaml.ScalarNode):
            yield _entry(file, key, key_node, value_node)
        else:
            yield from _entries(file, value_node, key)


def _entry(file: Path, key: str, key_node: yaml.Node, value_node: yaml.ScalarNode) -> _Entry:
    line = key_node.start_mark.line + 1
    if not value_node.value:
        raise _wrong(file, line, f"{key} has no value; give it one, or remove the line")
    return _Entry(key, value_node.value, line)


def _setting(file: Path, entry: _Entry) -> Setting:
    try:
        setting = read_setting(entry.key, entry.value)
    except ConfigurationError as error:
        raise type(error)(f"{file}, line {entry.line}: {error}") from None
    for notice in setting.notices:
        # Attribute the warning to the user's file: Python hides warnings of libraries.
        warnings.warn_explicit(
            notice.message, notice.category, str(file), entry.line, "__main__", _SHOWN
        )
    return setting


def _wrong(file: Path, line: int, message: str) -> ConfigurationError:
    return ConfigurationError(f"{file}, line {line}: {message}")
