"""The settings of the control server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config.options import given_by, options_of
from holdfast.config.rest_options import (
    REST_ADDRESS,
    REST_BIND_ADDRESS,
    REST_BIND_PORT,
    REST_CERTIFICATE,
    REST_ENABLED,
    REST_KEY,
    REST_TOKEN_FILE,
)

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """The settings of a control server."""

    bind_address: str = given_by(REST_BIND_ADDRESS)
    bind_port: str = given_by(REST_BIND_PORT)
    addresses: tuple[str, ...] | None = given_by(REST_ADDRESS)
    """Names of hosts that requests may name."""
    token_file: str | None = given_by(REST_TOKEN_FILE)
    certificate: str | None = given_by(REST_CERTIFICATE)
    key: str | None = given_by(REST_KEY)

    @property
    def ports(self) -> list[int]:
        """The ports to try, in order."""
        bounds = (part.strip().partition("-") for part in self.bind_port.split(","))
        return [port for low, _, high in bounds for port in range(int(low), int(high or low) + 1)]


def rest_settings(configuration: Configuration) -> RestSettings | None:
    """The settings of the control server, or None if jobs are not offered over HTTP."""
    if not configuration.get(REST_ENABLED):
        return None
    options = options_of(RestSettings)
    return RestSettings(**{name: configuration.get(option) for name, option in options.items()})
