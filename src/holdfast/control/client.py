"""A client of the control server, with Python's own HTTP."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast.clock import monotonic, wait
from holdfast.errors import ConfigurationError, ControlError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

FIRST_PAUSE: Final = 0.1
"""Seconds between the first two questions for a result."""
LONGEST_PAUSE: Final = 2.0
"""Pauses grow up to this, in seconds."""
_RESULTS: Final = {
    "savepoints": "location",
    "checkpoints": "checkpointId",
    "rescaling": "parallelism",
}
LARGEST_ANSWER: Final = 256 << 20
"""Bytes of the largest answer that is read."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """An operation that a server has begun."""

    job_id: str
    kind: str
    """`savepoints`, `checkpoints` or `rescaling`: the part of the path of its result."""
    id: str


class ControlClient:
    """Asks the control server of a driver; every method is one request.

    Answers are the JSON of the routes, as `docs/control.md` describes them.

    Args:
        url: Where the server listens.
        token: The token of the server.
        timeout: Seconds to wait for a connection and for an answer.
        ssl_context: Which certificates to trust; the system's by default.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError:
            self._host = None
        if self._host is None or parts.scheme not in ("http", "https"):
            raise ConfigurationError(
                f"{url!r} is no address; expected such as http://localhost:8081"
            )
        self.url = url.rstrip("/")
        self._base = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._token = token.strip()
        self._timeout = timeout
        self._ssl_context = ssl_context

    # What the server shows

    def overview(self) -> dict[str, Any]:
        """The jobs of the driver, counted."""
        return self._ask("GET", "/overview")

    def config(self) -> dict[str, Any]:
        """Settings of the server."""
        return self._ask("GET", "/config")

    def openapi(self) -> dict[str, Any]:
        """The description of all routes."""
        return self._ask("GET", "/openapi.json")

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs: times, state and name."""
        found: list[dict[str, Any]] = self._ask("GET", "/jobs/overview")["jobs"]
        return found

    def job_ids(self) -> dict[str, str]:
        """The status of all jobs, by id."""
        return {one["id"]: one["status"] for one in self._ask("GET", "/jobs")["jobs"]}

    def job(self, job_id: str) -> dict[str, Any]:
        """A job and its operators."""
        return self._ask("GET", _job(job_id))

    def job_config(self, job_id: str) -> dict[str, Any]:
        """Settings of a job, without secrets."""
        return self._ask("GET", _job(job_id, "config"))

    def exceptions(self, job_id: str) -> dict[str, Any]:
        """Failures of a job."""
        return self._ask("GET", _job(job_id, "exceptions"))

    def statistics(self, job_id: str) -> dict[str, Any]:
        """All statistics of a job."""
        return self._ask("GET", _job(job_id, "statistics"))

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Checkpoints of a job."""
        return self._ask("GET", _job(job_id, "checkpoints"))

    def checkpoint(self, job_id: str, checkpoint_id: int) -> dict[str, Any]:
        """A checkpoint and its operators."""
        return self._ask("GET", _job(job_id, "checkpoints", "details", str(checkpoint_id)))

    def checkpoint_config(self, job_id: str) -> dict[str, Any]:
        """Checkpoint settings of a job."""
        return self._ask("GET", _job(job_id, "checkpoints", "config"))

    # What the server does

    def trigger_savepoint(
        self,
        job_id: str,
        target_directory: str | None = None,
        *,
        cancel_job: bool = False,
        format_type: str | None = None,
        trigger_id: str | None = None,
    ) -> Trigger:
        """Begin a savepoint; `wait_for` waits for its path.

        Args:
            job_id: The job.
            target_directory: Path or URL; by default as the job is configured.
            cancel_job: Whether to cancel the job once the savepoint is complete.
            format_type: `CANONICAL`, the default, or `NATIVE`.
            trigger_id: Id of the operation, so that a request can be repeated; a new one if None.
        """
        body = {
            "target-directory": target_directory,
            "cancel-job": cancel_job,
            "formatType": format_type,
            "triggerId": trigger_id,
        }
        return self._trigger(job_id, "savepoints", "savepoints", body)

    def stop(
        self,
        job_id: str,
        target_directory: str | None = None,
        *,
        drain: bool = False,
        format_type: str | None = None,
        trigger_id: str | None = None,
    ) -> Trigger:
        """Begin a savepoint with which the job ends; see `trigger_savepoint`.

        Args:
            job_id: The job.
            target_directory: Path or URL; by default as the job is configured.
            drain: Whether to advance event time to its end first.
            format_type: `CANONICAL`, the default, or `NATIVE`.
            trigger_id: Id of the operation, so that a request can be repeated; a new one if None.
        """
        body = {
            "targetDirectory": target_directory,
            "drain": drain,
            "formatType": format_type,
            "triggerId": trigger_id,
        }
        return self._trigger(job_id, "stop", "savepoints", body)

    def trigger_checkpoint(self, job_id: str, *, trigger_id: str | None = None) -> Trigger:
        """Begin a checkpoint; `wait_for` waits for its id."""
        return self._trigger(job_id, "checkpoints", "checkpoints", {"triggerId": trigger_id})

    def rescale(self, job_id: str, parallelism: int, *, trigger_id: str | None = None) -> Trigger:
        """Begin to continue a job on other subtasks; `wait_for` waits until it runs."""
        body = {"parallelism": parallelism, "triggerId": trigger_id}
        return self._trigger(job_id, "rescaling", "rescaling", body)

    def cancel(self, job_id: str) -> None:
        """Tell a job to end for good; it ends some time after."""
        self._ask("PATCH", f"{_job(job_id)}?{urlencode({'mode': 'cancel'})}")

    def suspend(self, job_id: str) -> None:
        """Tell a job to end so that another start continues it; it ends some time after."""
        self._ask("POST", _job(job_id, "suspend"))

    def status(self, trigger: Trigger) -> dict[str, Any]:
        """Status of an operation, and its result once it has one."""
        return self._ask("GET", _job(trigger.job_id, trigger.kind, trigger.id))

    def wait_for(
        self,
        trigger: Trigger,
        *,
        timeout: float | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> Any:
        """Wait for the result of an operation: the path of a savepoint, the id of a checkpoint.

        Args:
            trigger: The operation.
            timeout: Seconds after which a TimeoutError is raised; the operation goes on.
            on_progress: Called before every pause with the seconds that have passed.

        Raises:
            ControlError: The operation has failed, or the server cannot be asked.
        """
        begun, pause = monotonic(), FIRST_PAUSE
        while True:
            answer = self.status(trigger)
            passed = monotonic() - begun
            if answer["status"]["id"] == "COMPLETED":
                return _result(trigger, answer.get("operation") or {})
            if timeout is not None and passed >= timeout:
                raise TimeoutError(
                    f"job {trigger.job_id!r}: the operation {trigger.id} in {trigger.kind} has not "
                    f"ended after {timeout} s; it continues"
                )
            if on_progress is not None:
                on_progress(passed)
            wait(pause if timeout is None else min(pause, timeout - passed))
            pause = min(LONGEST_PAUSE, pause * 1.5)

    # Requests

    def _trigger(
        self, job_id: str, route: str, kind: str, body: Mapping[str, object | None]
    ) -> Trigger:
        given = {name: value for name, value in body.items() if value is not None}
        answer = self._ask("POST", _job(job_id, route), given)
        return Trigger(job_id, kind, answer["request-id"])

    def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps(body)
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, self._base + path, content, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read(LARGEST_ANSWER)
            if answer.length:
                raise http.client.IncompleteRead(text, answer.length)
        except TimeoutError:
            raise ControlError(
                f"{self.url} has not answered within {self._timeout:.0f} s; check that the driver "
                "runs, and is not stuck"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(
                f"cannot reach {self.url}: {error or type(error).__name__}. Check the address, and "
                "that the driver runs: its jobs can be controlled until it ends"
            ) from error
        finally:
            connection.close()
        return self._read(method, path, status, text)

    def _connection(self) -> http.client.HTTPConnection:
        assert self._host is not None
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._ssl_context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _read(self, method: str, path: str, status: int, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, dict):
            return answer
        errors = answer.get("errors") if isinstance(answer, dict) else None
        if not isinstance(errors, list):
            raise ControlError(
                f"{self.url} answers {method} {path} with {status}, and not as a control server of "
                "Holdfast does; check the address",
                status,
            )
        why = "; ".join(map(str, errors))
        raise ControlError(f"{self.url} refuses {method} {path} ({status}): {why}", status)


def _job(job_id: str, *parts: str) -> str:
    return "/".join(["/jobs", *(quote(part, safe="") for part in (job_id, *parts))])


def _result(trigger: Trigger, operation: Mapping[str, Any]) -> Any:
    cause = operation.get("failure-cause")
    if cause is not None:
        raise ControlError(f"job {trigger.job_id!r}: {cause['stack-trace']}")
    return operation[_RESULTS[trigger.kind]]
