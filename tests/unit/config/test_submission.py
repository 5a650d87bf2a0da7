"""What `holdfast run` sets reaches the program, which may overrule it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from holdfast.config.configuration import JOB_NAME, PARALLELISM, Configuration
from holdfast.config.configuration_file import load_configuration
from holdfast.config.submission import VARIABLE, Submission, current_submission
from holdfast.errors import ConfigurationError, UnknownOptionError

if TYPE_CHECKING:
    from pathlib import Path


def submitted(monkeypatch: pytest.MonkeyPatch, **settings: str) -> Configuration:
    environment: dict[str, str] = {}
    keys = {key.replace("_", ".").replace("..", "-"): value for key, value in settings.items()}
    Submission(settings=keys).publish(environment)
    monkeypatch.setenv(VARIABLE, environment[VARIABLE])
    return load_configuration()


def test_submitted_settings_take_precedence_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.yaml").write_text("parallelism.default: 3\npipeline.name: filed\n")
    settings = submitted(monkeypatch, parallelism_default="5")
    assert settings.get(PARALLELISM) == 5
    assert settings.get(JOB_NAME) == "filed"


def test_the_program_takes_precedence_and_the_user_is_warned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = submitted(monkeypatch, parallelism_default="5")
    with pytest.warns(UserWarning, match="sets parallelism.default to 2, so 5 from `holdfast run`"):
        settings.set(PARALLELISM, 2)
    assert settings.get(PARALLELISM) == 2


def test_a_configuration_of_the_program_takes_precedence_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = submitted(monkeypatch, parallelism_default="5")
    with pytest.warns(UserWarning, match="has no effect"):
        settings.update(Configuration({"parallelism.default": 2}))
    assert settings.get(PARALLELISM) == 2


def test_a_program_that_sets_the_same_value_is_not_warned_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = submitted(monkeypatch, parallelism_default="5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.set(PARALLELISM, 5)


def test_the_warning_names_the_line_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = submitted(monkeypatch, parallelism_default="5")
    with pytest.warns(UserWarning, match="has no effect") as caught:
        settings.set(PARALLELISM, 2)
    assert caught[0].filename == __file__


def test_a_wrong_setting_is_refused_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"-D parallelism.default=many"):
        submitted(monkeypatch, parallelism_default="many")
    with pytest.raises(UnknownOptionError, match=r"-D parallelisms.default=2.*did you mean"):
        submitted(monkeypatch, parallelisms_default="2")


def test_a_submission_survives_the_environment() -> None:
    submission = Submission(settings={"a": "b c"}, master="local[2]", command=["holdfast", "run"])
    environment: dict[str, str] = {}
    submission.publish(environment)
    assert current_submission(environment) == submission
    assert current_submission({}) is None


def test_a_damaged_submission_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unset it"):
        current_submission({VARIABLE: "{"})
