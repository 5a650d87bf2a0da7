"""A job as its driver answers for it."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable
from pathlib import Path
from holdfast.config.configuration_file import load_configuration
from holdfast.config.registry_options import REGISTRY_DIR
from holdfast.control.registry import JobEntry, JobRegistry
from holdfast.cli.output import CommandError, UNKNOWN, UNREACHABLE


class Remote:
    @staticmethod
    def at(url, token_file): ...
    @staticmethod
    def of(entry): ...


def find_remote(job, rest, token_file): ...


def registry() -> JobRegistry:
    """The registry that is configured here."""
    directory = load_configuration().get(REGISTRY_DIR)
    return JobRegistry(None if directory is None else Path(directory))
