"""Options of the registry that lists jobs."""

from __future__ import annotations

from typing import Any, Final

from holdfast.config.options import ConfigOption, declared_options, optional, path

REGISTRY_DIR: ConfigOption[str | None] = ConfigOption(
    "registry.dir",
    optional(path),
    None,
    "Directory in which `holdfast list` finds jobs; by default holdfast/jobs below "
    "$XDG_STATE_HOME, or ~/.local/state. If it is set, every job is listed, not just those of "
    "`holdfast run`.",
)

REGISTRY_OPTIONS: Final[tuple[ConfigOption[Any], ...]] = declared_options(globals())
