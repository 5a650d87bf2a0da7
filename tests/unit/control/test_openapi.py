"""The description of the routes: complete, and kept by the server for all kinds of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from holdfast.config.rest import RestSettings
from holdfast.control.application import application
from holdfast.control.jobs import Jobs
from holdfast.control.openapi import description
from holdfast.control.operations import Operations
from holdfast.control.routes import Handlers
from holdfast.control.server import ControlServer
from holdfast.job.statistics import JobStatus
from tests.support.controlled_jobs import FakeJob
from tests.support.properties import searched

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-of-this-test"
ENDPOINTS = Handlers(Jobs(), Operations()).endpoints()
DESCRIBED = description(ENDPOINTS)
OPERATIONS = [(path, method) for path, methods in DESCRIBED["paths"].items() for method in methods]


class Tireless(FakeJob):
    """A job that does what it is told, and still runs."""

    def end(self, state: JobStatus) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a job that runs and one that has ended."""
    server = ControlServer(RestSettings(), TOKEN, operations=Operations(most_running=100))
    server.start()
    ended = FakeJob("ended")
    server.add(Tireless("a1"))
    server.add(ended)
    ended.end(JobStatus.FAILED)
    yield server.url
    server.stop()


def test_every_route_is_described() -> None:
    routes: list[Any] = application(Jobs(), Operations()).routes
    served = {(one.path, method) for one in routes for method in one.methods - {"HEAD"}}
    assert {(path, method.upper()) for path, method in OPERATIONS} == served


def test_every_operation_has_an_id_of_its_own() -> None:
    ids = [DESCRIBED["paths"][path][method]["operationId"] for path, method in OPERATIONS]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
@searched(few=4, many=300)
def test_the_server_keeps_its_description(url: str, path: str, method: str, examples: int) -> None:
    """Requests as described succeed or fail as described; all others are refused."""
    # The token is sent always, and tested elsewhere.
    described = {name: value for name, value in DESCRIBED.items() if name != "security"}
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=url)
    operation: Any = schema[path][method]
    modes = [GenerationMode.POSITIVE]
    if method != "get":
        modes.append(GenerationMode.NEGATIVE)
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=cases, job_id=st.sampled_from(["a1", "a1", "ended", None]))
    def check(case: Any, job_id: str | None) -> None:
        if job_id is not None and "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = job_id
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)

    check()
