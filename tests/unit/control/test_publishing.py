"""One control server for all jobs of a process."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import Configuration
from holdfast.control.client import ControlClient
from holdfast.control.publishing import prepare, publish, withdraw
from holdfast.errors import ConfigurationError
from tests.support.controlled_jobs import FakeJob

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ENABLED = {"rest.enabled": True}


@pytest.fixture(autouse=True)
def _no_server() -> Iterator[None]:
    withdraw()
    yield
    withdraw()


def test_jobs_are_not_offered_unless_that_is_wanted() -> None:
    assert publish(FakeJob(), Configuration()) is None


def test_all_jobs_of_a_process_have_one_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    for job_id in ("a1", "b2"):
        published = publish(FakeJob(job_id), Configuration(ENABLED))
    assert published is not None
    token = Path(published.token_file).read_text().strip()
    assert set(ControlClient(published.server.url, token).job_ids()) == {"a1", "b2"}
    assert caplog.messages == [
        f"jobs are controlled at {published.server.url}; the token is in {published.token_file}"
    ]
    withdraw()
    assert not Path(published.token_file).parent.exists()


def test_a_token_file_of_ones_own_stays(tmp_path: Path) -> None:
    file = tmp_path / "token"
    published = prepare(Configuration({**ENABLED, "rest.token-file": str(file)}))
    assert published is not None
    assert published.token_file == str(file)
    withdraw()
    assert file.exists()


def test_other_settings_of_a_server_that_runs_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = prepare(Configuration(ENABLED))
    second = prepare(Configuration({**ENABLED, "rest.address": "driver.example"}))
    assert first is second
    assert "other settings of it have no effect" in caplog.text


def test_a_server_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError):
        prepare(Configuration({**ENABLED, "rest.bind-address": "no such host"}))
    assert list(tmp_path.iterdir()) == []
    assert prepare(Configuration(ENABLED)) is not None


def test_the_client_hears_of_the_end_although_the_program_ends_with_the_job() -> None:
    script = """
import sys, threading
from holdfast import Configuration
from holdfast.control.publishing import publish
from tests.support.controlled_jobs import FakeJob
job = FakeJob()
published = publish(job, Configuration({"rest.enabled": True}))
print(published.server.url, open(published.token_file).read().strip(), flush=True)
assert job.entered.acquire(timeout=60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as program:
        assert program.stdout is not None
        url, token = program.stdout.readline().split()
        client = ControlClient(url, token)
        stop = client.stop("a1")
        assert client.wait_for(stop, timeout=60) == "/savepoints/savepoint-a1-1"
        assert program.wait(60) == 0


def test_a_program_without_control_does_not_load_a_server() -> None:
    script = "import sys, holdfast.control.publishing; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {"uvicorn", "starlette"} & set(ended.stdout.split())
