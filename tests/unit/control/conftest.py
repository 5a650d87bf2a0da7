"""A control server on loopback, with jobs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from holdfast.config.rest import RestSettings
from holdfast.control.operations import Operations
from holdfast.control.server import ControlServer
from tests.support.controlled_jobs import FakeJob

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-of-this-test"


@pytest.fixture
def job() -> FakeJob:
    """A job that runs."""
    return FakeJob()


@pytest.fixture
def server(job: FakeJob) -> Iterator[ControlServer]:
    """A server with that job, where three operations may run at a time."""
    server = ControlServer(RestSettings(), TOKEN, operations=Operations(most_running=3))
    server.start()
    server.add(job)
    yield server
    job.gate.set()
    server.stop()


@pytest.fixture
def http(server: ControlServer) -> Iterator[httpx.Client]:
    """A client that sends the token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        yield client
