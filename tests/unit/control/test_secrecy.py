"""Secrets are hidden, and nothing else."""

from __future__ import annotations

import pytest

from holdfast.config.checkpoint_options import CheckpointingMode
from holdfast.control.secrecy import is_sensitive, shown_settings, without_credentials


@pytest.mark.parametrize(
    "key",
    [
        "db.password",
        "DB.PASSWORD",
        "client-secret",
        "rest.token-file",
        "s3.access-key",
        "fs.azure.account.key.x",
        "apikey",
        "basic-auth",
        "security.jaas.config",
        "http-headers",
        "my.credentials",
    ],
)
def test_the_value_of_a_sensitive_key_is_hidden(key: str) -> None:
    assert is_sensitive(key)
    assert shown_settings({key: "hunter2"}) == {key: "******"}


def test_other_values_are_shown_as_in_a_file() -> None:
    settings = {
        "parallelism.default": 4,
        "execution.available-now": True,
        "execution.checkpointing.mode": CheckpointingMode.EXACTLY_ONCE,
        "rest.address": ("a", "b"),
    }
    assert shown_settings(settings) == {
        "parallelism.default": "4",
        "execution.available-now": "true",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "rest.address": "a, b",
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://me:pw@bucket/x", "s3://******@bucket/x"),
        ("https://token@host:80/x?y=1", "https://******@host:80/x?y=1"),
        ("db://me:p@ss@host/x", "db://******@host/x"),
        ("host=db password=hunter2 user=me", "host=db password=****** user=me"),
        ("jdbc:x://h/db?user=me&password=pw&x=1", "jdbc:x://h/db?user=me&password=******&x=1"),
        ("abfs://h/x?Secret=pw;api_key=k", "abfs://h/x?Secret=******;api_key=******"),
        ("a@b.example wrote to /x", "a@b.example wrote to /x"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("key=7 of 'count'", "key=7 of 'count'"),
    ],
)
def test_credentials_in_texts_are_hidden(given: str, shown: str) -> None:
    assert without_credentials(f'{{"a":"{given}"}}'.encode()) == f'{{"a":"{shown}"}}'.encode()
