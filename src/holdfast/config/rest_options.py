"""The options of the control server, which offers jobs over HTTP."""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.config.options import (
    ConfigOption,
    boolean,
    declared_options,
    optional,
    path,
    text,
)


def ports(value: object) -> str:
    """A port, a range of ports or a list of both; 0 is any free port."""
    given = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(given, str):
        found = [
            re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip()) for part in given.split(",")
        ]
        bounds = [(int(one[1]), int(one[2] or one[1])) for one in found if one is not None]
        if len(bounds) == len(found) and all(low <= high < 1 << 16 for low, high in bounds):
            return given
    raise ValueError('expected a port such as "8081", a range such as "50100-50200", or "0"')


def host_names(value: object) -> tuple[str, ...]:
    """Names of hosts, as a text with commas or as a list."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        found = tuple(name.strip().lower() for name in names)
        if all(re.fullmatch(r"[a-z0-9_.:\[\]-]+", name) for name in found):
            return found
    raise ValueError('expected names of hosts such as "driver.example.org, 10.0.0.7"')


REST_ENABLED: ConfigOption[bool] = ConfigOption(
    "rest.enabled",
    boolean,
    False,
    "Whether the driver offers its jobs over HTTP.",
)
REST_BIND_ADDRESS: ConfigOption[str] = ConfigOption(
    "rest.bind-address",
    text,
    "127.0.0.1",
    "Address that the driver listens on for HTTP.",
)
REST_BIND_PORT: ConfigOption[str] = ConfigOption(
    "rest.bind-port",
    ports,
    "0",
    "Port that the driver listens on for HTTP: a port, a range such as 50100-50200, or a list of "
    "both, of which the first free port is taken; 0 is any free port.",
)
REST_ADDRESS: ConfigOption[tuple[str, ...] | None] = ConfigOption(
    "rest.address",
    optional(host_names),
    None,
    "Names of hosts under which clients reach the driver, separated by commas; requests that name "
    "another host are refused. The address that it listens on and localhost are always accepted.",
)
REST_TOKEN_FILE: ConfigOption[str | None] = ConfigOption(
    "rest.token-file",
    optional(path),
    None,
    "File with the token that every request needs. If it does not exist, the driver writes a new "
    "token there, for this user alone; if not given, in a new private directory.",
)
REST_CERTIFICATE: ConfigOption[str | None] = ConfigOption(
    "security.ssl.rest.certificate",
    optional(path),
    None,
    "PEM file with the certificate of the driver and its chain; with it, HTTP is encrypted.",
)
REST_KEY: ConfigOption[str | None] = ConfigOption(
    "security.ssl.rest.key",
    optional(path),
    None,
    "PEM file with the private key of the certificate; if not given, in the certificate's file.",
)

REST_OPTIONS: Final[tuple[ConfigOption[Any], ...]] = declared_options(globals())
"""All options of the control server, in the order of the documentation."""
