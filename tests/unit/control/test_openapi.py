"""The description of the routes: complete, and kept by the server for all kinds of requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from holdfast.config.rest_options import RestSettings
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
OPERATIONS = [
    (path, method) for path, methods in DESCRIBED["paths"].items() for method in methods
]


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
def test_the_server_keeps_its_description(
    url: str, path: str, method: str, examples: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    schema = schemathesis.openapi.from_dict(DESCRIBED)
    schema.config.update(base_url=url)
    operation = schema[path][method]
    ids = st.sampled_from(["a1", "a1", "ended"])
    strategies = st.one_of(
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
    ) if "{" in path or method != "get" else operation.as_strategy()

    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        deadline=None,
    )
    def check(case: schemathesis.Case, job_id: str) -> None:
        if case.path_parameters and "job_id" in case.path_parameters and job_id:
            case.path_parameters["job_id"] = job_id
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)

    import hypothesis

    hypothesis.given(case=strategies, job_id=st.one_of(ids, st.none()))(check)()
