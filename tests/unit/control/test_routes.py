"""Every route, over HTTP, with Flink's names of fields."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast._version import VERSION
from holdfast.control.wire import read_body
from holdfast.errors import CheckpointError, ConfigurationError
from holdfast.job.statistics import JobFailure, JobStatus
from tests.support.controlled_jobs import CONFIGURATION, START, FakeJob

if TYPE_CHECKING:
    import httpx

    from holdfast.control.server import ControlServer


def get(http: httpx.Client, path: str) -> Any:
    """The answer to a question that succeeds."""
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def error(answer: httpx.Response, status: int) -> str:
    """The one error of an answer."""
    assert answer.status_code == status, answer.text
    [text] = answer.json()["errors"]
    return str(text)


def result(http: httpx.Client, path: str) -> Any:
    """What an operation comes to, once it has ended."""
    ended = threading.Event()
    for _ in range(600):
        found = get(http, path)
        if found["status"]["id"] == "COMPLETED":
            return found["operation"]
        ended.wait(0.05)
    raise AssertionError(f"{path} has not ended")


# What is shown


def test_the_overview_counts_the_jobs(http: httpx.Client, server: ControlServer) -> None:
    other = FakeJob("b2")
    server.add(other)
    other.end(JobStatus.FAILED)
    assert get(http, "/overview") == {
        "taskmanagers": 2,
        "jobs-running": 1,
        "jobs-finished": 0,
        "jobs-cancelled": 0,
        "jobs-failed": 1,
        "jobs-suspended": 0,
        "holdfast-version": VERSION,
    }


def test_the_settings_of_the_server_are_shown(http: httpx.Client) -> None:
    config = get(http, "/config")
    assert config["features"] == {"web-submit": False, "web-cancel": True}
    assert {"refresh-interval", "timezone-name", "timezone-offset"} < config.keys()


def test_all_jobs_are_listed_with_their_status(http: httpx.Client, job: FakeJob) -> None:
    assert get(http, "/jobs") == {"jobs": [{"id": "a1", "status": "RUNNING"}]}
    job.state = JobStatus.RESTARTING
    assert get(http, "/jobs") == {"jobs": [{"id": "a1", "status": "RESTARTING"}]}


def test_the_list_of_jobs_has_names_and_times(http: httpx.Client, job: FakeJob) -> None:
    [running] = get(http, "/jobs/overview")["jobs"]
    assert (running["jid"], running["name"], running["state"]) == ("a1", "orders", "RUNNING")
    assert (running["start-time"], running["end-time"]) == (START, -1)
    job.end(JobStatus.CANCELED)
    [ended] = get(http, "/jobs/overview")["jobs"]
    assert (ended["state"], ended["end-time"], ended["duration"]) == (
        "CANCELED",
        START + 60_000,
        60_000,
    )


def test_a_job_is_shown_with_its_operators(http: httpx.Client) -> None:
    found = get(http, "/jobs/a1")
    assert (found["jid"], found["state"], found["isStoppable"]) == ("a1", "RUNNING", True)
    assert (found["job-type"], found["maxParallelism"]) == ("STREAMING", 128)
    assert found["timestamps"] == {"RUNNING": START}
    [vertex] = found["vertices"]
    assert vertex == {
        "id": "count",
        "name": "Count",
        "status": "RUNNING",
        "metrics": {"read-records": 1_000, "write-records": 990},
    }


def test_checkpoints_are_counted_summarised_and_listed(http: httpx.Client) -> None:
    found = get(http, "/jobs/a1/checkpoints")
    assert found["counts"] == {
        "restored": 1,
        "total": 4,
        "in_progress": 1,
        "completed": 2,
        "failed": 1,
    }
    assert found["summary"]["end_to_end_duration"] == dict.fromkeys(
        ("min", "max", "avg", "p50", "p90", "p95", "p99", "p999"), 250
    )
    assert found["summary"]["state_size"]["p50"] == 500
    assert [one["id"] for one in found["history"]] == [4, 3, 2, 1]
    assert [one["className"] for one in found["history"]] == [
        "in_progress",
        "failed",
        "completed",
        "completed",
    ]


def test_the_latest_checkpoints_are_shown_by_kind(http: httpx.Client) -> None:
    latest = get(http, "/jobs/a1/checkpoints")["latest"]
    completed, savepoint = latest["completed"], latest["savepoint"]
    assert (completed["id"], completed["external_path"]) == (2, "/checkpoints/a1/chk-2")
    assert (savepoint["id"], savepoint["is_savepoint"]) == (2, True)
    assert savepoint["external_path"] == "/savepoints/savepoint-a1-0"
    assert savepoint["checkpoint_type"] == "SAVEPOINT"
    failed = latest["failed"]
    assert failed["failure_message"] == "it was not complete within its timeout"
    assert failed["failure_timestamp"] == START + 3_500
    assert latest["restored"] == {
        "id": 1,
        "restore_timestamp": START + 3_600,
        "is_savepoint": False,
        "external_path": "/checkpoints/a1/chk-1",
    }


def test_a_checkpoint_is_shown_with_the_parts_of_its_operators(http: httpx.Client) -> None:
    found = get(http, "/jobs/a1/checkpoints/details/2")
    assert (found["status"], found["state_size"], found["checkpointed_size"]) == (
        "COMPLETED",
        500,
        50,
    )
    assert found["tasks"]["count"]["num_acknowledged_subtasks"] == 1
    assert found["tasks"]["count"]["end_to_end_duration"] == 200


@pytest.mark.parametrize("checkpoint_id", ["9", "-1", "two", "9" * 30])
def test_a_checkpoint_that_is_not_known_is_not_found(
    http: httpx.Client, checkpoint_id: str
) -> None:
    answer = http.get(f"/jobs/a1/checkpoints/details/{checkpoint_id}")
    assert "1, 2, 3, 4" in error(answer, 404)


def test_the_checkpoint_settings_are_shown_with_their_defaults(http: httpx.Client) -> None:
    assert get(http, "/jobs/a1/checkpoints/config") == {
        "mode": "exactly_once",
        "interval": 10_000,
        "timeout": 600_000,
        "min_pause": 0,
        "max_concurrent": 1,
        "externalization": {"enabled": False, "delete_on_cancellation": True},
        "state_backend": "hashmap",
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": 0,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
    }


def test_a_job_without_checkpoints_has_none_to_show(
    http: httpx.Client, server: ControlServer
) -> None:
    server.add(FakeJob("b2", configuration={}, checkpoints=False))
    for path in ("", "/config", "/details/1"):
        text = error(http.get(f"/jobs/b2/checkpoints{path}"), 404)
        assert text == "job 'b2' takes no checkpoints"


def test_the_settings_of_a_job_are_shown_without_secrets(http: httpx.Client) -> None:
    answer = http.get("/jobs/a1/config")
    found = answer.json()
    assert found["execution-config"]["job-parallelism"] == 4
    assert found["execution-config"]["restart-strategy"] == "fixed-delay"
    assert found["execution-config"]["user-config"] == {"city": "Ghent", "db.password": "******"}
    shown = found["configuration"]
    assert shown.keys() == CONFIGURATION.keys()
    assert shown["rest.token-file"] == "******"
    assert shown["execution.checkpointing.dir"] == "s3://******@bucket/checkpoints"
    assert "hunter2" not in answer.text


def test_failures_are_shown_newest_first(http: httpx.Client, job: FakeJob) -> None:
    assert get(http, "/jobs/a1/exceptions") == {
        "root-exception": None,
        "timestamp": None,
        "exceptionHistory": {"entries": [], "truncated": True},
    }
    job.failed += [
        JobFailure(START + 5, "UserFunctionError", "operator 'count' failed"),
        JobFailure(START + 9, "SinkError", "cannot reach db://me:hunter2@host/x"),
    ]
    found = get(http, "/jobs/a1/exceptions")
    assert found["timestamp"] == START + 9
    assert found["root-exception"] == "cannot reach db://******@host/x"
    entries = found["exceptionHistory"]["entries"]
    assert [one["exceptionName"] for one in entries] == ["SinkError", "UserFunctionError"]
    job.failure = "job 'orders' failed: operator 'count' failed"
    assert get(http, "/jobs/a1/exceptions")["root-exception"] == job.failure


def test_statistics_are_shown_as_a_whole(http: httpx.Client) -> None:
    found = get(http, "/jobs/a1/statistics")
    assert (found["status"], found["events"], found["restarts"]) == ("RUNNING", 1_000, 1)
    assert found["workers"] == {"workers": 2, "max_memory": 1 << 28, "kept_tasks": 4}
    assert found["watermarks"] == {"count": -(2**63)}
    operator = found["operators"]["count"]
    assert (operator["records_in"], operator["watermark"]) == (1_000, -(2**63))
    assert operator["metrics"]["counters"] == {"seen": 1_000}
    assert operator["metrics"]["gauges"] == {"size": {"0": 4.0}}
    assert operator["metrics"]["histograms"]["delay"]["p90"] == 90.0
    assert [one["id"] for one in found["checkpoints"]["history"]] == [1, 2, 3, 4]


def test_a_job_that_is_not_known_is_not_found_and_the_known_ones_are_named(
    http: httpx.Client,
) -> None:
    for path in ("", "/config", "/exceptions", "/statistics", "/checkpoints", "/savepoints/x"):
        assert error(http.get(f"/jobs/nope{path}"), 404) == "there is no job 'nope'; jobs: a1"
    assert "jobs: a1" in error(http.post("/jobs/nope/stop"), 404)


# Savepoints, checkpoints and ends


def test_a_savepoint_is_taken_in_the_background(http: httpx.Client, job: FakeJob) -> None:
    job.gate.clear()
    answer = http.post("/jobs/a1/savepoints", json={"target-directory": "/elsewhere"})
    assert answer.status_code == 202
    path = f"/jobs/a1/savepoints/{answer.json()['request-id']}"
    assert get(http, path) == {"status": {"id": "IN_PROGRESS"}}
    job.gate.set()
    assert result(http, path) == {"location": "/elsewhere/savepoint-a1-1"}
    assert job.told == [("savepoint", "/elsewhere", "CANONICAL")]


def test_a_savepoint_needs_no_body_if_the_job_has_a_directory(
    http: httpx.Client, job: FakeJob
) -> None:
    request = http.post("/jobs/a1/savepoints").json()["request-id"]
    assert result(http, f"/jobs/a1/savepoints/{request}") == {
        "location": "/savepoints/savepoint-a1-1"
    }


def test_a_savepoint_without_any_directory_is_refused(
    http: httpx.Client, server: ControlServer
) -> None:
    server.add(FakeJob("b2", configuration={}))
    text = error(http.post("/jobs/b2/savepoints", json={}), 400)
    assert text.startswith("target-directory: ")
    assert error(http.post("/jobs/b2/stop", json={}), 400).startswith("targetDirectory: ")


def test_a_failed_savepoint_says_why(http: httpx.Client, job: FakeJob) -> None:
    job.error = CheckpointError("/s: the savepoint was not taken: a worker is lost")
    request = http.post("/jobs/a1/savepoints").json()["request-id"]
    assert result(http, f"/jobs/a1/savepoints/{request}") == {
        "failure-cause": {
            "class": "holdfast.errors.CheckpointError",
            "stack-trace": "/s: the savepoint was not taken: a worker is lost",
        }
    }


def test_a_job_can_be_cancelled_with_a_savepoint(http: httpx.Client, job: FakeJob) -> None:
    body = {"target-directory": "/s", "cancel-job": True, "formatType": "NATIVE"}
    request = http.post("/jobs/a1/savepoints", json=body).json()["request-id"]
    result(http, f"/jobs/a1/savepoints/{request}")
    assert job.told == [("cancel with savepoint", "/s", "NATIVE")]
    assert get(http, "/jobs/a1")["state"] == "CANCELED"


def test_a_job_is_stopped_with_a_savepoint(http: httpx.Client, job: FakeJob) -> None:
    body = {"targetDirectory": "/s", "drain": True, "formatType": "NATIVE", "triggerId": "t-1"}
    assert http.post("/jobs/a1/stop", json=body).json() == {"request-id": "t-1"}
    assert result(http, "/jobs/a1/savepoints/t-1") == {"location": "/s/savepoint-a1-1"}
    assert job.told == [("stop", "/s", "NATIVE", "True")]
    assert get(http, "/jobs/a1")["state"] == "FINISHED"


def test_a_checkpoint_is_taken_in_the_background(http: httpx.Client, job: FakeJob) -> None:
    request = http.post("/jobs/a1/checkpoints", json={"checkpointType": "CONFIGURED"}).json()
    path = f"/jobs/a1/checkpoints/{request['request-id']}"
    assert result(http, path) == {"checkpointId": 8}
    assert job.told == [("checkpoint",)]


def test_a_job_is_rescaled_in_the_background(http: httpx.Client, job: FakeJob) -> None:
    request = http.post("/jobs/a1/rescaling", json={"parallelism": 5}).json()
    assert result(http, f"/jobs/a1/rescaling/{request['request-id']}") == {"parallelism": 5}
    assert job.told == [("rescale", "5")]


def test_a_rescale_that_fails_says_why(http: httpx.Client, job: FakeJob) -> None:
    job.error = ConfigurationError("5 subtasks are too many")
    http.post("/jobs/a1/rescaling", json={"parallelism": 5, "triggerId": "t"})
    found = result(http, "/jobs/a1/rescaling/t")
    assert found["failure-cause"]["stack-trace"] == "5 subtasks are too many"


@pytest.mark.parametrize("body", [{}, {"parallelism": 0}, {"parallelism": "two"}])
def test_a_rescale_names_what_is_wrong_with_its_body(http: httpx.Client, body: Any) -> None:
    assert "parallelism" in error(http.post("/jobs/a1/rescaling", json=body), 400)


def test_the_same_trigger_id_is_the_same_operation(http: httpx.Client, job: FakeJob) -> None:
    body = {"triggerId": "once"}
    for _ in range(3):
        assert http.post("/jobs/a1/stop", json=body).json() == {"request-id": "once"}
        # Also when the job has ended.
        result(http, "/jobs/a1/savepoints/once")
    assert len(job.told) == 1


def test_a_trigger_id_belongs_to_one_kind_of_operation(http: httpx.Client) -> None:
    http.post("/jobs/a1/savepoints", json={"triggerId": "once"})
    answer = http.post("/jobs/a1/checkpoints", json={"triggerId": "once"})
    assert "belongs to another operation: savepoint" in error(answer, 409)
    assert http.get("/jobs/a1/checkpoints/once").status_code == 404


def test_a_trigger_id_that_is_not_known_is_not_found(http: httpx.Client) -> None:
    assert "'nope'" in error(http.get("/jobs/a1/savepoints/nope"), 404)
    assert "'nope'" in error(http.get("/jobs/a1/checkpoints/nope"), 404)


def test_a_job_is_cancelled(http: httpx.Client, job: FakeJob) -> None:
    answer = http.patch("/jobs/a1", params={"mode": "cancel"})
    assert (answer.status_code, answer.json()) == (202, {})
    assert job.entered.acquire(timeout=30)
    assert job.told == [("cancel",)]


def test_a_job_that_is_being_cancelled_is_not_told_twice(http: httpx.Client, job: FakeJob) -> None:
    job.gate.clear()
    assert http.patch("/jobs/a1").status_code == 202
    assert job.entered.acquire(timeout=30)
    assert http.patch("/jobs/a1").status_code == 202
    assert job.told == [("cancel",)]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("mode=stop", "mode: expected cancel, got 'stop'"),
        ("mode=", "mode: expected cancel, got ''"),
        ("mod=stop", "mod: there is no such parameter; known: mode"),
        ("mode=cancel&mode=cancel", "mode: given twice"),
    ],
)
def test_another_way_to_end_a_job_is_refused(
    http: httpx.Client, job: FakeJob, query: str, text: str
) -> None:
    assert error(http.patch(f"/jobs/a1?{query}"), 400) == text
    assert not job.told


def test_a_job_is_suspended(http: httpx.Client, job: FakeJob) -> None:
    assert http.post("/jobs/a1/suspend").status_code == 202
    assert job.entered.acquire(timeout=30)
    assert job.told == [("suspend",)]


def test_a_cancellation_that_fails_is_logged(
    http: httpx.Client, job: FakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    job.error = CheckpointError("it hangs")
    http.patch("/jobs/a1")
    assert job.entered.acquire(timeout=30)
    for _ in range(600):
        if caplog.messages:
            break
        threading.Event().wait(0.05)
    assert caplog.messages == ["could not cancel job 'orders': it hangs"]


ACTIONS = [
    ("POST", "/jobs/a1/savepoints"),
    ("POST", "/jobs/a1/stop"),
    ("POST", "/jobs/a1/checkpoints"),
    ("POST", "/jobs/a1/suspend"),
    ("PATCH", "/jobs/a1"),
]


@pytest.mark.parametrize(("method", "path"), ACTIONS)
def test_a_job_that_has_ended_is_in_conflict(
    http: httpx.Client, job: FakeJob, method: str, path: str
) -> None:
    job.end(JobStatus.FAILED)
    text = error(http.request(method, path), 409)
    assert text == "job 'a1' is FAILED, and does not run"
    assert not job.told


@pytest.mark.parametrize(("method", "path"), ACTIONS)
def test_a_job_that_restarts_can_only_be_ended(
    http: httpx.Client, job: FakeJob, method: str, path: str
) -> None:
    job.state = JobStatus.RESTARTING
    ends = path.endswith("suspend") or method == "PATCH"
    assert http.request(method, path).status_code == (202 if ends else 409)


# Requests that are wrong


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("savepoints", '{"cancel-job": "yes"}', "$.cancel-job"),
        ("savepoints", '{"target-directory": 7}', "$.target-directory"),
        ("savepoints", '{"target-directory": ""}', "$.target-directory"),
        ("savepoints", '{"formatType": "ZIP"}', "$.formatType"),
        ("savepoints", '{"triggerId": "a/b"}', "$.triggerId"),
        ("savepoints", '{"cancelJob": true}', "cancelJob"),
        ("stop", '{"drain": 1}', "$.drain"),
        ("stop", "[]", "expected `object`"),
        ("stop", "{", "truncated"),
        ("stop", "\xff", "malformed"),
        ("checkpoints", '{"checkpointType": "FULL"}', "$.checkpointType"),
        ("suspend", '{"now": true}', "now"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(
    http: httpx.Client, job: FakeJob, path: str, body: str, named: str
) -> None:
    text = error(http.post(f"/jobs/a1/{path}", content=body.encode("latin-1")), 400)
    assert named.lower() in text.lower()
    assert not job.told


def test_null_stands_for_the_default(http: httpx.Client, job: FakeJob) -> None:
    body = dict.fromkeys(("target-directory", "cancel-job", "formatType", "triggerId"))
    assert http.post("/jobs/a1/savepoints", json=body).status_code == 202


def test_a_large_body_is_refused(http: httpx.Client, job: FakeJob) -> None:
    text = error(http.post("/jobs/a1/savepoints", content=b" " * 100_000), 413)
    assert "65536 bytes" in text
    assert not job.told


def test_a_wrong_method_is_refused_with_the_right_ones(http: httpx.Client) -> None:
    answer = http.delete("/jobs/a1")
    assert answer.headers["allow"].replace(" ", "").split(",") >= ["GET"]
    text = error(answer, 405)
    assert "GET" in text
    assert "PATCH" in text


def test_an_unknown_route_points_to_the_description(http: httpx.Client) -> None:
    assert "/openapi.json" in error(http.get("/jars"), 404)
    assert http.get("/jobs/").status_code == 404


def test_a_failure_of_the_driver_is_an_answer_too(
    http: httpx.Client, job: FakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    job.figures = None  # type: ignore[assignment]
    assert "TypeError" in error(http.get("/jobs/a1"), 500)
    assert "GET /jobs/a1 failed" in caplog.messages


# Nobody waits for anybody


def test_a_savepoint_that_hangs_stops_no_other_request(http: httpx.Client, job: FakeJob) -> None:
    job.gate.clear()
    for _ in range(3):
        assert http.post("/jobs/a1/savepoints").status_code == 202
        assert job.entered.acquire(timeout=30)
    assert get(http, "/jobs/a1")["state"] == "RUNNING"
    assert get(http, "/jobs/a1/checkpoints")["counts"]["total"] == 4


def test_operations_beyond_the_limit_are_refused(http: httpx.Client, job: FakeJob) -> None:
    job.gate.clear()
    first = http.post("/jobs/a1/savepoints", json={"triggerId": "first"})
    for _ in range(2):
        assert http.post("/jobs/a1/savepoints").status_code == 202
    refused = http.post("/jobs/a1/savepoints")
    assert error(refused, 429) == "3 operations run already; try again later"
    assert http.post("/jobs/a1/savepoints", json={"triggerId": "first"}).json() == first.json()
    # A job can be ended all the same.
    assert http.post("/jobs/a1/suspend").status_code == 202
    job.gate.set()
    result(http, "/jobs/a1/savepoints/first")


def test_statistics_that_hang_stop_no_other_request(
    http: httpx.Client, server: ControlServer
) -> None:
    class Stuck(FakeJob):
        def statistics(self) -> Any:
            self.entered.release()
            assert self.gate.wait(30)
            return super().statistics()

    stuck = Stuck("b2")
    stuck.gate.clear()
    server.jobs.add(stuck)
    waiting = threading.Thread(target=lambda: get(http, "/jobs/b2"))
    waiting.start()
    assert stuck.entered.acquire(timeout=30)
    assert get(http, "/jobs/a1")["state"] == "RUNNING"
    stuck.gate.set()
    waiting.join(30)


def test_a_head_request_has_no_body(http: httpx.Client) -> None:
    answer = http.head("/jobs")
    assert (answer.status_code, answer.content) == (200, b"")


def test_answers_are_not_kept_by_anybody(http: httpx.Client) -> None:
    headers = http.get("/jobs").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    request = Request({"type": "http", "method": "POST", "headers": []}, never)
    with pytest.raises(HTTPException, match=r"has not come within 0\.01 s") as raised:
        asyncio.run(read_body(request, 0.01))
    assert raised.value.status_code == 408


def test_a_request_that_is_broken_off_does_no_harm(
    http: httpx.Client, server: ControlServer, job: FakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /jobs/a1/stop HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n"
        token = http.headers["authorization"]
        connection.sendall(f"{head}Authorization: {token}\r\n\r\n{{".encode())
        assert get(http, "/jobs/a1")["state"] == "RUNNING"
    assert get(http, "/jobs/a1")["state"] == "RUNNING"
    assert not job.told
    assert caplog.messages == []
