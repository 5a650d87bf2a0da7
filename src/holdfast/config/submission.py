"""Settings that `holdfast run` gives to a program, in environment variables.

They reach the program through `get_execution_environment()`, so that a program needs no change.
They take precedence over `holdfast.yaml`. What the program sets itself takes precedence over
them, with a warning.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config.configuration import read_setting
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from holdfast.config.configuration import Configuration

VARIABLE: Final = "HOLDFAST_SUBMITTED"
"""The environment variable that holds a submission as JSON."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a program about its job instead of running it."""

    answer: str
    """File that the answer goes to, as JSON."""
    savepoint: str | None = None
    """Savepoint to compare the program with; without one, the job is explained."""
    allow_non_restored_state: bool = False


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What `holdfast run` was called with."""

    settings: dict[str, str] = {}
    """Settings of Holdfast, by key."""
    master: str | None = None
    """Spark's master; None if it was not given."""
    command: list[str] = []
    """The command line, which starts the program again."""
    directory: str = ""
    """Working directory of that command."""
    log: str | None = None
    """File that the program's output goes to; None if it goes to a terminal."""

    preview: Preview | None = None

    def publish(self, environment: MutableMapping[str, str]) -> None:
        """Put the submission into the environment of a program."""
        environment[VARIABLE] = msgspec.json.encode(self).decode()

    def apply(self, configuration: Configuration) -> Configuration:
        """Set what was submitted; returns the configuration.

        Raises:
            ConfigurationError: A key or a value is wrong.
        """
        for key, value in self.settings.items():
            try:
                setting = read_setting(key, value)
            except ConfigurationError as error:
                raise type(error)(f"holdfast run, -D {key}={value}: {error}") from None
            configuration.take(setting)
            configuration.mark_submitted(setting)
        return configuration


def current_submission(environment: Mapping[str, str] = os.environ) -> Submission | None:
    """The submission that this program was started with, or None."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Submission)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{VARIABLE} is not what `holdfast run` puts there ({error}); unset it"
        ) from None
