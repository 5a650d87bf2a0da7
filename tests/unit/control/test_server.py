"""Where the server listens, how it starts and ends."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from holdfast.config.rest import RestSettings
from holdfast.control.client import ControlClient
from holdfast.control.server import ControlServer
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-this-test"


@pytest.fixture
def start() -> Iterator[list[ControlServer]]:
    """Servers that are stopped after the test."""
    servers: list[ControlServer] = []
    yield servers
    for server in servers:
        server.stop()


def started(servers: list[ControlServer], settings: RestSettings) -> ControlServer:
    """A server that runs."""
    server = ControlServer(settings, TOKEN)
    servers.append(server)
    server.start()
    return server


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_any_free_port_is_taken_by_default(start: list[ControlServer]) -> None:
    one, other = started(start, RestSettings()), started(start, RestSettings())
    assert one.url != other.url
    assert one.url.startswith("http://127.0.0.1:")


def test_the_first_free_port_of_a_range_is_taken(start: list[ControlServer], taken: int) -> None:
    server = started(start, RestSettings(bind_port=f"{taken}-{taken + 20}"))
    assert taken < int(server.url.rpartition(":")[2]) <= taken + 20


def test_a_port_that_is_taken_is_refused_with_its_option(taken: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"port {taken} .*rest\.bind-port"):
        ControlServer(RestSettings(bind_port=str(taken)), TOKEN).start()


def test_an_address_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        ControlServer(RestSettings(bind_address="no such host"), TOKEN).start()


def test_the_server_listens_on_ipv6(start: list[ControlServer]) -> None:
    try:
        server = started(start, RestSettings(bind_address="::1"))
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    assert server.url.startswith("http://[::1]:")
    assert ControlClient(server.url, TOKEN).job_ids() == {}


def test_listening_on_loopback_warns_of_nothing(
    start: list[ControlServer], caplog: pytest.LogCaptureFixture
) -> None:
    started(start, RestSettings())
    assert caplog.messages == []


def test_listening_elsewhere_without_encryption_warns(
    start: list[ControlServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = started(start, RestSettings(bind_address="0.0.0.0", addresses=("driver.example",)))
    [text] = caplog.messages
    assert "without encryption" in text
    assert "security.ssl.rest.certificate" in text
    assert server.url.startswith("http://driver.example:")


def test_listening_on_all_addresses_without_a_name_warns(
    start: list[ControlServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = started(start, RestSettings(bind_address="0.0.0.0"))
    assert "rest.address" in caplog.messages[-1]
    assert ControlClient(server.url, TOKEN).job_ids() == {}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost and its key, in one file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    made = subprocess.run(
        [*command.split(), "-keyout", str(file), "-out", f"{file}.crt"], capture_output=True
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    file.write_bytes(file.read_bytes() + file.with_name("both.pem.crt").read_bytes())
    return file


def test_requests_are_encrypted_with_a_certificate(
    start: list[ControlServer], certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = started(start, RestSettings(bind_address="0.0.0.0", certificate=str(certificate)))
    assert not any("encryption" in text for text in caplog.messages)
    assert server.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificate) + ".crt")
    assert ControlClient(server.url, TOKEN, ssl_context=trusted).job_ids() == {}


def test_a_certificate_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("missing.pem", "empty.pem"):
        (tmp_path / "empty.pem").touch()
        settings = RestSettings(certificate=str(tmp_path / name))
        with pytest.raises(ConfigurationError, match="certificate cannot be used"):
            ControlServer(settings, TOKEN).start()


def test_a_server_that_was_stopped_answers_no_more() -> None:
    server = ControlServer(RestSettings(), TOKEN)
    server.start()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, trust_env=False)
    assert not any(one.name == "holdfast: control server" for one in threading.enumerate())


def test_a_server_does_not_keep_its_program_from_ending() -> None:
    script = f"""
import urllib.request
from holdfast.config.rest import RestSettings
from holdfast.control.server import ControlServer
server = ControlServer(RestSettings(), {TOKEN!r})
server.start()
asked = urllib.request.Request(server.url + "/jobs", headers={{"Authorization": "Bearer {TOKEN}"}})
print(urllib.request.urlopen(asked).read().decode())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == '{"jobs":[]}\n'
    assert ended.stderr == ""
