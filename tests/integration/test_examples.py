"""The examples run as users run them, and print what their texts promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(example: str) -> list[str]:
    """What an example prints."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"))
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_consumer_lag_is_producer_minus_consumer() -> None:
    assert [json.loads(line) for line in printed("consumer_lag.py")] == [
        {"timestamp": 1555516800, "lag": {"consumer0": 5, "consumer1": 8, "consumer2": 3}}
    ]


def test_url_count_counts_every_url() -> None:
    assert [json.loads(line) for line in printed("url_count.py")] == [
        {"url": "/api/a", "count": 1},
        {"url": "/api/b", "count": 1},
        {"url": "/api/a", "count": 2},
    ]


def test_the_state_machine_alerts_on_invalid_events() -> None:
    assert printed("state_machine.py") == [
        "Alert(source_address=2, state='INITIAL', type='login')",
        "Alert(source_address=1, state='ACTIVE', type='open')",
        "Alert(source_address=1, state='INITIAL', type='request')",
    ]


def test_the_demo_shows_progress_and_ends_with_a_summary() -> None:
    lines = printed("demo.py")
    assert any("[####" in line and "epoch" in line for line in lines)
    assert any("500,000 in, 500,000 counts out" in line for line in lines)
    assert any("status     FINISHED" in line for line in lines)
