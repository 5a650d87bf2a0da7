"""The client: one method for each route, and clear errors."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.control.client import ControlClient, Trigger
from holdfast.errors import CheckpointError, ConfigurationError, ControlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.control.server import ControlServer
    from tests.support.controlled_jobs import FakeJob

TOKEN = "a-token-of-this-test"


@pytest.fixture
def client(server: ControlServer) -> ControlClient:
    """A client of the server."""
    return ControlClient(server.url, TOKEN)


def test_everything_that_is_shown_has_a_method(client: ControlClient) -> None:
    assert client.overview()["jobs-running"] == 1
    assert client.config()["features"]["web-cancel"]
    assert "/jobs" in client.openapi()["paths"]
    assert client.job_ids() == {"a1": "RUNNING"}
    assert client.jobs()[0]["name"] == "orders"
    assert client.job("a1")["state"] == "RUNNING"
    assert client.job_config("a1")["configuration"]["parallelism.default"] == "4"
    assert client.exceptions("a1")["root-exception"] is None
    assert client.statistics("a1")["events"] == 1_000
    assert client.checkpoints("a1")["counts"]["total"] == 4
    assert client.checkpoint("a1", 2)["status"] == "COMPLETED"
    assert client.checkpoint_config("a1")["interval"] == 10_000


def test_operations_are_begun_and_waited_for(client: ControlClient, job: FakeJob) -> None:
    savepoint = client.trigger_savepoint("a1", "/s", format_type="NATIVE", trigger_id="mine")
    assert savepoint == Trigger("a1", "savepoints", "mine")
    assert client.wait_for(savepoint) == "/s/savepoint-a1-1"
    assert client.wait_for(client.trigger_checkpoint("a1")) == 8
    assert client.wait_for(client.rescale("a1", 5)) == 5
    assert client.wait_for(client.stop("a1", drain=True)) == "/savepoints/savepoint-a1-1"
    assert client.job_ids() == {"a1": "FINISHED"}


def test_a_job_is_cancelled_with_and_without_a_savepoint(
    client: ControlClient, server: ControlServer, job: FakeJob
) -> None:
    client.wait_for(client.trigger_savepoint("a1", cancel_job=True))
    assert job.told == [("cancel with savepoint", "CANONICAL")]
    other = type(job)("b 2?x")
    server.add(other)
    client.cancel("b 2?x")
    assert other.entered.acquire(timeout=30)
    last = type(job)("c3")
    server.add(last)
    client.suspend("c3")
    assert last.entered.acquire(timeout=30)


def test_waiting_shows_progress(client: ControlClient, job: FakeJob) -> None:
    job.gate.clear()
    seen: list[float] = []

    def progress(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 3:
            job.gate.set()

    assert client.wait_for(client.trigger_checkpoint("a1"), on_progress=progress) == 8
    assert len(seen) >= 3
    assert seen == sorted(seen)


def test_waiting_ends_at_its_limit_and_the_operation_goes_on(
    client: ControlClient, job: FakeJob
) -> None:
    job.gate.clear()
    trigger = client.trigger_checkpoint("a1")
    with pytest.raises(TimeoutError, match="it continues"):
        client.wait_for(trigger, timeout=0.05)
    job.gate.set()
    assert client.wait_for(trigger) == 8


def test_an_operation_that_fails_raises_its_reason(client: ControlClient, job: FakeJob) -> None:
    job.error = CheckpointError("/s: the savepoint was not taken")
    with pytest.raises(ControlError, match=r"^job 'a1': /s: the savepoint was not taken$"):
        client.wait_for(client.trigger_savepoint("a1"))


def test_a_job_that_does_not_exist_is_an_error_with_its_status(client: ControlClient) -> None:
    with pytest.raises(ControlError, match=r"\(404\): there is no job 'x y'; jobs: a1") as raised:
        client.job("x y")
    assert raised.value.status == 404


def test_a_wrong_token_is_an_error_that_says_so(server: ControlServer) -> None:
    with pytest.raises(ControlError, match="token is missing or wrong") as raised:
        ControlClient(server.url, "wrong").overview()
    assert raised.value.status == 401


def test_a_server_that_cannot_be_reached_is_an_error_that_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ControlError, match=r"cannot reach .*that the driver runs") as raised:
            ControlClient(f"http://127.0.0.1:{port}", TOKEN).overview()
    assert raised.value.status is None


@pytest.fixture
def other() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers one request with the first of these texts, or not at all."""
    answers: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                if answers:
                    connection.sendall(answers[0])
                else:
                    done.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", answers
        done.set()
        thread.join(30)


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(b"<html>"),
        http_answer(b"[]"),
        http_answer(b"<html>", "502 Bad Gateway"),
        http_answer(json.dumps({"message": "no"}).encode(), "404 Not Found"),
    ],
)
def test_an_answer_of_another_server_is_an_error_that_says_so(
    other: tuple[str, list[bytes]], answer: bytes
) -> None:
    url, answers = other
    answers.append(answer)
    with pytest.raises(ControlError, match="not as a control server of Holdfast does"):
        ControlClient(url, TOKEN).overview()


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", CUT])
def test_an_answer_that_is_no_http_or_is_cut_off_is_an_error(
    other: tuple[str, list[bytes]], answer: bytes
) -> None:
    url, answers = other
    answers.append(answer)
    with pytest.raises(ControlError, match="cannot reach"):
        ControlClient(url, TOKEN).overview()


def test_a_server_that_does_not_answer_is_given_up(other: tuple[str, list[bytes]]) -> None:
    with pytest.raises(ControlError, match="has not answered within"):
        ControlClient(other[0], TOKEN, timeout=0.2).overview()


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://localhost", "http://", "http://a:b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        ControlClient(url, TOKEN)
