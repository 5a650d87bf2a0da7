"""Settings from holdfast.yaml."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.config import configuration as conf
from holdfast.config.checkpoint_options import CHECKPOINT_INTERVAL
from holdfast.config.configuration import Configuration
from holdfast.config.configuration_file import load_configuration, read_configuration
from holdfast.errors import ConfigurationError, UnknownOptionError
from holdfast.spark import environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no file named elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_CONF", raising=False)
    return tmp_path


def written(directory: Path, text: str) -> Path:
    """A file with that text."""
    file = directory / "holdfast.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_nothing_is_set() -> None:
    assert dict(load_configuration()) == {}


def test_the_file_of_the_working_directory_is_read(directory: Path) -> None:
    written(directory, "parallelism.default: 3\n")
    assert dict(load_configuration()) == {"parallelism.default": 3}


def test_the_named_file_is_read_instead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(directory, "parallelism.default: 3\n")
    (directory / "other.yaml").write_text("pipeline.name: other\n")
    monkeypatch.setenv("HOLDFAST_CONF", "other.yaml")
    assert dict(load_configuration()) == {"pipeline.name": "other"}
    monkeypatch.setenv("HOLDFAST_CONF", "")
    assert dict(load_configuration()) == {"parallelism.default": 3}


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONF", "/no/such.yaml")
    with pytest.raises(ConfigurationError, match=r"/no/such\.yaml; correct or unset HOLDFAST_CONF"):
        load_configuration()


def test_a_named_directory_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONF", str(directory))
    with pytest.raises(ConfigurationError, match="cannot read the configuration file"):
        load_configuration()


def test_keys_may_be_flat_nested_or_mixed(directory: Path) -> None:
    file = written(
        directory,
        """
        execution:
          checkpointing:
            interval: 10 s
            unaligned.enabled: true
        restart-strategy:
          type: off
        state.backend.type: "rocksdb"
        execution.checkpointing.data-inline-threshold: 1 kb
        """,
    )
    assert dict(read_configuration(file)) == {
        "execution.checkpointing.interval": 10_000,
        "execution.checkpointing.unaligned.enabled": True,
        "restart-strategy.type": "none",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.data-inline-threshold": 1024,
    }


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "execution: {}\n"])
def test_a_file_may_set_nothing(directory: Path, text: str) -> None:
    assert dict(read_configuration(written(directory, text))) == {}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\n", 1, "there is no option 'a'"),
        ("\nstate.backend.typ: x\n", 2, r"did you mean 'state\.backend\.type'"),
        ("state:\n  backend:\n    typ: x\n", 3, r"did you mean 'state\.backend\.type'"),
        ("parallelism.default: many\n", 1, "expected an integer, got 'many'"),
        ("execution.checkpointing.dir:\n", 1, r"execution\.checkpointing\.dir has no value"),
        ("pipeline.name: [a, b]\n", 1, r"pipeline\.name: expected keys and values"),
        ("- a\n", 1, "the file: expected keys and values"),
        ("just words\n", 1, "the file: expected keys and values"),
        ("? [a]\n: b\n", 1, "a key must be a text"),
        ("pipeline.name: a\nb: 'x\n", 3, "not valid YAML"),
        ("pipeline.name: a\n---\npipeline.name: b\n", 2, "not valid YAML"),
        (
            "parallelism.default: 1\nparallelism:\n  default: 2\n",
            3,
            r"parallelism\.default was set in line 1 already",
        ),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(
    directory: Path, text: str, line: int, message: str
) -> None:
    file = written(directory, text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_configuration(file)
    assert str(caught.value).startswith(f"{file}, line {line}: ")


def test_an_unknown_key_in_a_file_is_an_unknown_option(directory: Path) -> None:
    with pytest.raises(UnknownOptionError):
        read_configuration(written(directory, "no.such.key: 1\n"))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"pipeline.name: \x00\n"])
def test_a_file_that_is_no_text_is_an_error(directory: Path, content: bytes) -> None:
    file = directory / "holdfast.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"holdfast\.yaml"):
        read_configuration(file)


def test_an_older_key_in_a_file_warns_once_at_its_line(directory: Path) -> None:
    file = written(directory, "# old\nstate:\n  checkpoints:\n    dir: /c\n")
    with warnings.catch_warnings(record=True) as caught:
        # What Python shows to those who set no filters of their own.
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        for _ in range(2):
            configuration = read_configuration(file)
    assert dict(configuration) == {"execution.checkpointing.dir": "/c"}
    [warning] = caught
    assert (warning.filename, warning.lineno) == (str(file), 4)
    assert "use execution.checkpointing.dir" in str(warning.message)


def test_an_older_and_a_newer_key_for_one_option_clash(directory: Path) -> None:
    file = written(directory, "state.backend.type: hashmap\nstate.backend: rocksdb\n")
    with (
        pytest.warns(DeprecationWarning, match=r"state\.backend is deprecated"),
        pytest.raises(ConfigurationError, match=r"line 2: state\.backend was set in line 1"),
    ):
        read_configuration(file)


def test_the_program_goes_before_the_argument_and_that_before_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        directory,
        "pipeline.name: file\nparallelism.default: 1\nexecution.checkpointing.interval: 1 s\n",
    )
    # No job runs here, so no session is needed.
    monkeypatch.setattr(environment, "check_session", lambda session: session)
    env = environment.StreamExecutionEnvironment.get_execution_environment(
        cast("Any", object()),
        Configuration({"parallelism.default": 2, "execution.checkpointing.interval": "2 s"}),
    ).enable_checkpointing("3 s")
    assert env._configuration.get(conf.JOB_NAME) == "file"
    assert env._configuration.get(conf.PARALLELISM) == 2
    assert env._configuration.get(CHECKPOINT_INTERVAL) == 3000
