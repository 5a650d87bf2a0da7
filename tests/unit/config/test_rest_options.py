"""The settings of the control server."""

from __future__ import annotations

import pytest

from holdfast import Configuration
from holdfast.config.rest import RestSettings, rest_settings
from holdfast.errors import ConfigurationError


def test_jobs_are_not_offered_unless_that_is_wanted() -> None:
    assert rest_settings(Configuration()) is None
    assert rest_settings(Configuration({"rest.enabled": True})) == RestSettings()


def test_the_settings_are_those_of_the_configuration() -> None:
    given = Configuration(
        {
            "rest.enabled": "true",
            "rest.bind-address": "0.0.0.0",
            "rest.bind-port": "8081",
            "rest.address": "Driver.Example, 10.0.0.7",
            "rest.token-file": "/run/token",
            "security.ssl.rest.certificate": "/run/cert.pem",
            "security.ssl.rest.key": "/run/key.pem",
        }
    )
    assert rest_settings(given) == RestSettings(
        bind_address="0.0.0.0",
        bind_port="8081",
        addresses=("driver.example", "10.0.0.7"),
        token_file="/run/token",
        certificate="/run/cert.pem",
        key="/run/key.pem",
    )


@pytest.mark.parametrize(
    ("given", "ports"),
    [
        ("0", [0]),
        (8081, [8081]),
        ("50100-50103", [50100, 50101, 50102, 50103]),
        ("8081, 50100-50101", [8081, 50100, 50101]),
    ],
)
def test_ports_are_named_as_in_flink(given: object, ports: list[int]) -> None:
    settings = rest_settings(Configuration({"rest.enabled": True, "rest.bind-port": given}))
    assert settings is not None
    assert settings.ports == ports


@pytest.mark.parametrize("given", ["", "80-", "-80", "90-80", "65536", "x", True, None, "80;81"])
def test_other_ports_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.bind-port: expected a port such as"):
        Configuration({"rest.bind-port": given})


@pytest.mark.parametrize("given", ["", "a b", "http://a", ["a", 7], 7])
def test_other_names_of_hosts_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.address: expected names of hosts"):
        Configuration({"rest.address": given})
