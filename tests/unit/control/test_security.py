"""Who is let in: the token, its file, hosts and pages."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from holdfast.config.rest import RestSettings
from holdfast.control.security import obtain_token
from holdfast.control.server import ControlServer
from holdfast.errors import ConfigurationError
from tests.support.controlled_jobs import FakeJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server() -> Iterator[ControlServer]:
    """One server for all tests: none of them changes anything."""
    server = ControlServer(RestSettings(), TOKEN)
    server.start()
    server.add(FakeJob())
    yield server
    server.stop()


# Requests


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer \xe9"},
    ],
)
@pytest.mark.parametrize("path", ["/jobs", "/openapi.json", "/nowhere"])
def test_a_request_without_the_token_is_refused(
    server: ControlServer, headers: dict[str, str], path: str
) -> None:
    raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    answer = httpx.get(server.url + path, headers=raw, trust_env=False)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "token is missing or wrong" in answer.json()["errors"][0]


def test_a_second_token_does_not_help_the_first(server: ControlServer) -> None:
    headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")]
    assert httpx.get(f"{server.url}/jobs", headers=headers, trust_env=False).status_code == 401


def test_nothing_is_done_without_the_token(server: ControlServer) -> None:
    assert httpx.patch(f"{server.url}/jobs/a1", trust_env=False).status_code == 401
    assert server.jobs.running("a1") is not None


def test_the_scheme_of_the_token_has_any_case(server: ControlServer) -> None:
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert httpx.get(f"{server.url}/jobs", headers=headers, trust_env=False).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "me@127.0.0.1:{port}",
        "127.0.0.1:{port}/x",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1:99999999",
        "[::1",
        "",
    ],
)
def test_a_request_that_names_a_foreign_host_is_refused(
    http: httpx.Client, server: ControlServer, host: str
) -> None:
    port = server.url.rpartition(":")[2]
    answer = http.get("/jobs", headers={"Host": host.format(port=port)})
    assert answer.status_code == 403
    assert "rest.address" in answer.json()["errors"][0]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_a_request_may_name_this_machine(
    http: httpx.Client, server: ControlServer, host: str
) -> None:
    port = server.url.rpartition(":")[2]
    answer = http.get("/jobs", headers={"Host": host.format(port=port)})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://", "http://[", ""]
)
def test_a_request_of_a_foreign_page_is_refused(http: httpx.Client, origin: str) -> None:
    answer = http.get("/jobs", headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json() == {"errors": ["the request comes from a page of another site"]}


def test_a_page_of_this_server_may_ask(http: httpx.Client, server: ControlServer) -> None:
    assert http.get("/jobs", headers={"Origin": server.url}).status_code == 200


@pytest.fixture
def named() -> Iterator[ControlServer]:
    """A server that has names."""
    server = ControlServer(RestSettings(addresses=("driver.example", "10.0.0.7")), TOKEN)
    server.start()
    yield server
    server.stop()


def test_a_request_may_name_a_configured_host_with_any_port(named: ControlServer) -> None:
    for host in ("driver.example", "Driver.Example:8443", "10.0.0.7:443"):
        answer = httpx.get(f"{named.url}/jobs", headers={**BEARER, "Host": host}, trust_env=False)
        assert answer.status_code == 200, host
    headers = {**BEARER, "Origin": "https://driver.example"}
    assert httpx.get(f"{named.url}/jobs", headers=headers, trust_env=False).status_code == 200


# The file of the token


def test_a_new_token_is_for_its_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "private" / "token"
    token = obtain_token(file)
    assert len(token) >= 40
    assert file.read_text() == f"{token}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == ["token"]


def test_a_token_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        obtain_token(tmp_path / "private" / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private" / "token").stat().st_mode) == 0o600


def test_the_token_of_an_earlier_driver_is_used_again(tmp_path: Path) -> None:
    assert obtain_token(tmp_path / "token") == obtain_token(tmp_path / "token")


def test_drivers_that_start_together_agree_on_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(obtain_token, [tmp_path / "token"] * 32))
    assert len(tokens) == 1
    assert os.listdir(tmp_path) == ["token"]


def test_a_symlink_in_place_of_the_token_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x" * 40)
    target.chmod(0o600)
    (tmp_path / "token").symlink_to(target)
    with pytest.raises(ConfigurationError, match="is no plain file"):
        obtain_token(tmp_path / "token")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="is no plain file"):
        obtain_token(tmp_path / "dangling")
    assert not (tmp_path / "nothing").exists()


def test_a_pipe_or_directory_in_place_of_the_token_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "directory"):
        with pytest.raises(ConfigurationError, match="is no plain file"):
            obtain_token(tmp_path / name)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_token_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    obtain_token(file)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match="others may read it"):
        obtain_token(file)


@pytest.mark.parametrize("content", ["", "short\n", "a" * 20 + "\x01", "\xe9" * 30])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content.encode("latin-1"))
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="holds no token of at least 16 characters"):
        obtain_token(file)


def test_a_directory_where_others_may_write_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigurationError, match="other users can replace files here"):
        obtain_token(open_to_all / "token")
    # As /tmp is: nobody can replace what belongs to others.
    open_to_all.chmod(0o1777)
    assert obtain_token(open_to_all / "token")


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used for the token"):
        obtain_token(tmp_path / "file" / "token")
