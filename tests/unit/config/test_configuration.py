from __future__ import annotations

import pytest

from holdfast.config import configuration as conf
from holdfast.config.configuration import Configuration, RuntimeExecutionMode
from holdfast.errors import ConfigurationError, UnknownOptionError


def test_an_option_that_is_not_set_has_its_default() -> None:
    configuration = Configuration()
    for option in conf.OPTIONS.values():
        assert configuration.get(option) == option.default
        assert not configuration.contains(option)


def test_options_are_set_by_flinks_keys() -> None:
    configuration = Configuration(
        {
            "parallelism.default": "4",
            "pipeline.max-parallelism": 256,
            "state.backend.type": "rocksdb",
            "execution.runtime-mode": "batch",
            "pipeline.auto-generate-uids": "false",
            "execution.epoch.interval": "2 s",
        }
    )
    assert configuration.get(conf.PARALLELISM) == 4
    assert configuration.get(conf.MAX_PARALLELISM) == 256
    assert configuration.get(conf.STATE_BACKEND) == "rocksdb"
    assert configuration.get(conf.RUNTIME_MODE) is RuntimeExecutionMode.BATCH
    assert configuration.get(conf.AUTO_GENERATE_UIDS) is False
    assert configuration.get(conf.EPOCH_INTERVAL) == 2000


def test_an_unknown_key_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UnknownOptionError, match=r"did you mean 'state\.backend\.type'"):
        Configuration({"state.backend.typ": "rocksdb"})
    with pytest.raises(UnknownOptionError, match="known keys"):
        Configuration().set("zzz", 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parallelism.default", 0),
        ("parallelism.default", "many"),
        ("parallelism.default", True),
        ("state.backend.type", "memory"),
        ("execution.runtime-mode", "sometimes"),
        ("pipeline.auto-generate-uids", "maybe"),
        ("execution.epoch.interval", "soon"),
        ("execution.epoch.interval", -1),
        ("pipeline.name", ""),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_wanted(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{key}: expected"):
        Configuration().set(key, value)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (500, 500),
        ("500", 500),
        ("500 ms", 500),
        ("10s", 10_000),
        ("2 min", 120_000),
        ("1 h", 3600000),
    ],
)
def test_durations_are_read_as_flink_writes_them(text: object, milliseconds: int) -> None:
    configuration = Configuration({"execution.epoch.interval": text})
    assert configuration.get(conf.EPOCH_INTERVAL) == milliseconds


def test_update_takes_over_what_is_set_only() -> None:
    base = Configuration({"parallelism.default": 2, "pipeline.name": "a"})
    base.update(Configuration({"pipeline.name": "b"}))
    assert dict(base) == {"parallelism.default": 2, "pipeline.name": "b"}
