"""Checkpoint options, the view PyFlink gives of them, and what the runtime is told."""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.config import checkpoint_options as options
from holdfast.config.checkpoint_config import (
    UNLIMITED_FAILURES,
    CheckpointConfig,
    ExternalizedCheckpointCleanup,
)
from holdfast.config.checkpoint_options import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.config.checkpointing import CheckpointSettings, checkpoint_settings
from holdfast.config.configuration import OPTIONS, Configuration
from holdfast.config.storage import (
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    checkpoint_storage,
)
from holdfast.errors import ConfigurationError
from holdfast.spark.environment import StreamExecutionEnvironment

PREFIX = "execution.checkpointing."


def settings_of(**changed: object) -> CheckpointSettings | None:
    """What the runtime is told with a second's interval and some more options."""
    keys = {PREFIX + key.replace("_", "-"): value for key, value in changed.items()}
    return checkpoint_settings(Configuration({f"{PREFIX}interval": "1 s", **keys}))


def environment() -> StreamExecutionEnvironment:
    """An environment whose settings are looked at, and that never runs anything."""
    return StreamExecutionEnvironment(cast("Any", None), Configuration())


# Options


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("interval", None),
        ("interval-during-backlog", None),
        ("mode", CheckpointingMode.EXACTLY_ONCE),
        ("timeout", 600_000),
        ("min-pause", 0),
        ("max-concurrent-checkpoints", 1),
        ("tolerable-failed-checkpoints", 0),
        (
            "externalized-checkpoint-retention",
            ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
        ),
        ("unaligned.enabled", False),
        ("aligned-checkpoint-timeout", 0),
        ("unaligned.forced", False),
        ("checkpoints-after-tasks-finish", True),
        ("storage", None),
        ("dir", None),
        ("savepoint-dir", None),
        ("num-retained", 1),
        ("incremental", False),
        ("data-inline-threshold", 20_480),
        ("write-buffer-size", 4096),
        ("create-subdir", True),
        ("local-backup.enabled", False),
        ("asynchronous", True),
        ("accept-duplicates-on-fallback", False),
        ("during-recovery.enabled", False),
        ("file-merging.max-file-size", 32 << 20),
    ],
)
def test_an_option_has_flinks_default(key: str, default: object) -> None:
    assert OPTIONS[PREFIX + key].default == default


def test_the_options_of_recovery_have_flinks_defaults() -> None:
    configuration = Configuration({"execution.state-recovery.claim-mode": "no-claim"})
    assert configuration.get(options.CLAIM_MODE) is RecoveryClaimMode.NO_CLAIM
    assert options.CLAIM_MODE.default is RecoveryClaimMode.NO_CLAIM
    assert options.RECOVERY_PATH.default is None
    assert options.IGNORE_UNCLAIMED_STATE.default is False


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("interval", 9, "at least 10 ms"),
        ("interval", "soon", "a duration such as"),
        ("timeout", "9 ms", "at least 10 ms"),
        ("min-pause", -1, "a duration"),
        ("mode", "TWICE", "EXACTLY_ONCE, AT_LEAST_ONCE"),
        ("mode", 1, "EXACTLY_ONCE, AT_LEAST_ONCE"),
        ("max-concurrent-checkpoints", 0, "at least 1"),
        ("tolerable-failed-checkpoints", -1, "at least 0"),
        ("externalized-checkpoint-retention", "KEEP", "RETAIN_ON_CANCELLATION"),
        ("storage", "rocksdb", "jobmanager, filesystem"),
        ("dir", " ", "a path such as"),
        ("dir", 3, "a path such as"),
        ("num-retained", 0, "at least 1"),
        ("data-inline-threshold", "2 mb", "at most 1 mb"),
        ("data-inline-threshold", "2 miles", "a size such as"),
        ("write-buffer-size", 0, "at least 1 byte"),
        ("file-merging.max-space-amplification", "much", "a number"),
        ("file-merging.max-space-amplification", "inf", "a number"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    key: str, value: object, wanted: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{PREFIX}{key}: expected .*{wanted}.*, got"):
        Configuration({PREFIX + key: value})


@pytest.mark.parametrize(
    ("written", "size"),
    [(100, 100), ("100", 100), ("20 kb", 20_480), ("20KB", 20_480), ("1m", 1 << 20), ("5 b", 5)],
)
def test_sizes_are_read_as_flink_writes_them(written: object, size: int) -> None:
    configuration = Configuration({f"{PREFIX}data-inline-threshold": written})
    assert configuration.get(options.INLINE_THRESHOLD) == size


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("10 seconds", 10_000),
        ("1 Day", 86_400_000),
        ("3 MIN", 180_000),
        (timedelta(hours=1), 3_600_000),
    ],
)
def test_durations_are_read_in_all_of_flinks_units(written: object, milliseconds: int) -> None:
    configuration = Configuration({f"{PREFIX}interval": written})
    assert configuration.get(options.CHECKPOINT_INTERVAL) == milliseconds


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("state.checkpoints.dir", "execution.checkpointing.dir", "/c"),
        ("state.backend.fs.checkpointdir", "execution.checkpointing.dir", "/c"),
        ("state.savepoints.dir", "execution.checkpointing.savepoint-dir", "/s"),
        ("state.backend.incremental", "execution.checkpointing.incremental", True),
        ("state.backend", "state.backend.type", "rocksdb"),
        ("state.checkpoints.num-retained", "execution.checkpointing.num-retained", 3),
        ("state.checkpoint-storage", "execution.checkpointing.storage", "filesystem"),
        ("state.backend.fs.memory-threshold", "execution.checkpointing.data-inline-threshold", 9),
        ("state.backend.local-recovery", "execution.checkpointing.local-backup.enabled", True),
        ("execution.checkpointing.unaligned", "execution.checkpointing.unaligned.enabled", True),
        ("restart-strategy", "restart-strategy.type", "fixed-delay"),
        ("execution.savepoint.path", "execution.state-recovery.path", "/s/1"),
        (
            "execution.savepoint-restore-mode",
            "execution.state-recovery.claim-mode",
            RecoveryClaimMode.CLAIM,
        ),
    ],
)
def test_an_older_key_is_accepted_and_the_new_one_named(old: str, new: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^{old} is deprecated; use {new}$") as caught:
        configuration = Configuration({old: value})
    assert dict(configuration) == {new: value}
    assert [warning.filename for warning in caught] == [__file__]


def test_no_key_means_two_options() -> None:
    aliases = [alias for option in OPTIONS.values() for alias in option.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(OPTIONS)


def test_an_option_without_effect_says_so_when_it_asks_for_something() -> None:
    key = f"{PREFIX}file-merging.enabled"
    configuration = Configuration({key: False})
    with pytest.warns(UserWarning, match=rf"^{key} has no effect") as caught:
        configuration.set(key, True)
    assert len(caught) == 1
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        Configuration().update(configuration)
    assert again == []


def test_a_job_id_is_a_short_plain_name() -> None:
    assert dict(Configuration({"pipeline.job-id": "orders_2-eu"})) == {
        "pipeline.job-id": "orders_2-eu"
    }
    for wrong in ("", "a/b", "a b", "x" * 65, "é", "a\n", 7):
        with pytest.raises(ConfigurationError, match=r"1 to 64 letters, digits, _ and -"):
            Configuration({"pipeline.job-id": wrong})


# Storage


def test_storages_have_flinks_limits() -> None:
    assert FileSystemCheckpointStorage("/c") == FileSystemCheckpointStorage("/c", 20_480, 4096)
    assert JobManagerCheckpointStorage() == JobManagerCheckpointStorage(None, 5 * 1024 * 1024)


def test_a_path_object_is_kept_as_text() -> None:
    assert FileSystemCheckpointStorage(Path("/c")) == FileSystemCheckpointStorage("/c")
    assert JobManagerCheckpointStorage(Path("/c")).checkpoint_path == "/c"


def test_a_storage_travels_unchanged_and_cannot_be_changed() -> None:
    storage = FileSystemCheckpointStorage("/c", 0, 1)
    assert pickle.loads(pickle.dumps(storage)) == storage
    with pytest.raises(dataclasses.FrozenInstanceError):
        storage.checkpoint_path = "/d"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("",), "checkpoint_path"),
        ((None,), "checkpoint_path"),
        ((5,), "checkpoint_path"),
        (("/c", (1 << 20) + 1), "file_state_size_threshold"),
        (("/c", "20 kb"), "file_state_size_threshold"),
        (("/c", True), "file_state_size_threshold"),
        (("/c", 0, 0), "write_buffer_size"),
    ],
)
def test_a_file_system_storage_is_checked_when_it_is_made(arguments: Any, field: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^FileSystemCheckpointStorage: {field}: "):
        FileSystemCheckpointStorage(*arguments)


def test_a_jobmanager_storage_is_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"^JobManagerCheckpointStorage: max_state_size: "):
        JobManagerCheckpointStorage(max_state_size=0)
    with pytest.raises(ConfigurationError, match=r"^JobManagerCheckpointStorage: checkpoint_path"):
        JobManagerCheckpointStorage("")


@pytest.mark.parametrize(
    ("written", "storage"),
    [
        ({}, JobManagerCheckpointStorage()),
        ({"dir": "/c"}, FileSystemCheckpointStorage("/c")),
        ({"dir": "/c", "storage": "filesystem"}, FileSystemCheckpointStorage("/c")),
        ({"dir": "/c", "storage": "jobmanager"}, JobManagerCheckpointStorage("/c")),
        (
            {"dir": "/c", "data-inline-threshold": 1, "write-buffer-size": "1 kb"},
            FileSystemCheckpointStorage("/c", 1, 1024),
        ),
        ({"jobmanager.max-state-size": "1 mb"}, JobManagerCheckpointStorage(None, 1 << 20)),
    ],
)
def test_the_storage_follows_from_the_options(written: dict[str, Any], storage: object) -> None:
    configuration = Configuration({PREFIX + key: value for key, value in written.items()})
    assert checkpoint_storage(configuration) == storage


def test_a_file_system_without_a_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"filesystem.*set execution\.checkpointing\.dir"):
        settings_of(storage="filesystem")


# The view


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_interval", 1000),
        ("checkpointing_mode", CheckpointingMode.AT_LEAST_ONCE),
        ("checkpoint_timeout", 20_000),
        ("min_pause_between_checkpoints", 500),
        ("max_concurrent_checkpoints", 2),
        ("tolerable_checkpoint_failure_number", 3),
        ("externalized_checkpoint_retention", ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION),
        ("aligned_checkpoint_timeout", 30_000),
        ("alignment_timeout", 30_000),
        ("checkpoint_storage", FileSystemCheckpointStorage("/c", 5, 6)),
        ("checkpoint_storage", JobManagerCheckpointStorage("/c", 7)),
    ],
)
def test_what_a_setter_sets_its_getter_gives(name: str, value: object) -> None:
    config = CheckpointConfig(Configuration())
    assert getattr(config, f"set_{name}")(value) is config
    assert getattr(config, f"get_{name}")() == value


def test_the_view_and_the_configuration_are_one() -> None:
    configuration = Configuration()
    config = CheckpointConfig(configuration)
    assert not config.is_checkpointing_enabled()
    configuration.set(f"{PREFIX}interval", "2 s")
    assert config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == 2000
    config.set_checkpoint_storage_dir(Path("/c"))
    assert configuration.get(options.CHECKPOINT_DIR) == "/c"
    assert config.get_checkpoint_storage() == FileSystemCheckpointStorage("/c")


def test_a_storage_set_in_code_replaces_the_whole_of_the_one_before() -> None:
    config = CheckpointConfig(Configuration({f"{PREFIX}dir": "/c"}))
    config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert config.get_checkpoint_storage() == JobManagerCheckpointStorage()
    config.set_checkpoint_storage_dir("/d")
    assert config.get_checkpoint_storage() == FileSystemCheckpointStorage("/d")


def test_only_a_storage_can_be_set_as_storage() -> None:
    with pytest.raises(ConfigurationError, match="'/c' is not a checkpoint storage"):
        CheckpointConfig(Configuration()).set_checkpoint_storage("/c")  # type: ignore[arg-type]


def test_a_refused_value_leaves_the_setting_as_it_was() -> None:
    config = CheckpointConfig(Configuration()).set_checkpoint_interval("1 s")
    with pytest.raises(ConfigurationError, match="at least 10 ms"):
        config.set_checkpoint_interval(1)
    assert config.get_checkpoint_interval() == 1000


def test_flags_are_switched_on_and_off() -> None:
    config = CheckpointConfig(Configuration())
    assert config.enable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert not config.disable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert not config.is_force_unaligned_checkpoints()
    assert config.set_force_unaligned_checkpoints().is_force_unaligned_checkpoints()


def test_failing_on_checkpointing_errors_is_a_number_of_tolerable_failures() -> None:
    config = CheckpointConfig(Configuration())
    assert config.is_fail_on_checkpointing_errors()
    config.set_fail_on_checkpointing_errors(False)
    assert config.get_tolerable_checkpoint_failure_number() == UNLIMITED_FAILURES
    assert config.set_fail_on_checkpointing_errors(True).is_fail_on_checkpointing_errors()


def test_the_spellings_of_flink_1_mean_the_same() -> None:
    config = CheckpointConfig(Configuration())
    assert not config.is_externalized_checkpoints_enabled()
    config.enable_externalized_checkpoints(ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    assert config.is_externalized_checkpoints_enabled()
    expected = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    assert config.get_externalized_checkpoint_retention() is expected
    assert config.get_externalized_checkpoint_cleanup() is expected


# What the runtime is told


def test_without_an_interval_there_are_no_checkpoints() -> None:
    assert checkpoint_settings(Configuration({f"{PREFIX}dir": "/c"})) is None


def test_the_settings_are_the_options() -> None:
    changed = {
        "interval": "3 s",
        "mode": "at_least_once",
        "timeout": "1 min",
        "min-pause": "1 s",
        "max-concurrent-checkpoints": 2,
        "tolerable-failed-checkpoints": 4,
        "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "aligned-checkpoint-timeout": "5 s",
        "num-retained": 3,
        "incremental": "true",
        "asynchronous": "false",
        "local-backup.enabled": "true",
        "checkpoints-after-tasks-finish": "false",
        "create-subdir": "false",
        "accept-duplicates-on-fallback": "true",
        "dir": "/c",
    }
    configuration = Configuration({PREFIX + key: value for key, value in changed.items()})
    assert checkpoint_settings(configuration) == CheckpointSettings(
        interval_ms=3000,
        mode=CheckpointingMode.AT_LEAST_ONCE,
        timeout_ms=60_000,
        min_pause_ms=1000,
        max_concurrent=2,
        tolerable_failures=4,
        retention=ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
        unaligned=False,
        aligned_timeout_ms=5000,
        num_retained=3,
        incremental=True,
        asynchronous=False,
        local_backup=True,
        after_tasks_finish=False,
        create_subdir=False,
        accept_duplicates=True,
        storage=FileSystemCheckpointStorage("/c"),
    )


def test_a_storage_given_in_code_goes_before_the_options() -> None:
    configuration = Configuration({f"{PREFIX}interval": 1000, f"{PREFIX}dir": "/c"})
    storage = JobManagerCheckpointStorage()
    settings = checkpoint_settings(configuration, storage)
    assert settings is not None
    assert settings.storage is storage


def test_an_interval_shorter_than_the_pause_is_raised_to_it() -> None:
    settings = settings_of(min_pause="5 s")
    assert settings is not None
    assert (settings.interval_ms, settings.min_pause_ms) == (5000, 5000)


def test_a_pause_ends_after_a_year() -> None:
    settings = settings_of(min_pause="4000 d")
    assert settings is not None
    assert settings.interval_ms == settings.min_pause_ms == 365 * 86_400_000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "AT_LEAST_ONCE"}, r"unaligned\.enabled needs .*mode EXACTLY_ONCE"),
        ({"max_concurrent_checkpoints": 2}, "one checkpoint at a time.* is 2; set it to 1"),
    ],
)
def test_unaligned_checkpoints_need_exactly_once_and_no_company(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings_of(**{"unaligned.enabled": True}, **changed)


@pytest.mark.parametrize("interval", ["0 ms", "1 s", "2 s"])
def test_an_interval_during_backlog_is_none_or_no_shorter(interval: str) -> None:
    with pytest.warns(UserWarning, match="no effect"):
        assert settings_of(interval_during_backlog=interval) is not None


def test_a_shorter_interval_during_backlog_is_refused() -> None:
    configuration = Configuration({f"{PREFIX}interval": "1 s"})
    with pytest.warns(UserWarning, match="no effect"):
        configuration.set(f"{PREFIX}interval-during-backlog", "999 ms")
    with pytest.raises(ConfigurationError, match="give 0 or at least the interval"):
        checkpoint_settings(configuration)


# The environment


def test_the_environment_and_its_checkpoint_config_agree() -> None:
    env = environment()
    assert env.get_checkpoint_interval() is None
    assert env.enable_checkpointing(1000) is env
    assert env.get_checkpoint_config().get_checkpoint_interval() == 1000
    assert env.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    env.get_checkpoint_config().set_checkpoint_interval(2000)
    assert env.get_checkpoint_interval() == 2000
    env.configure(Configuration({f"{PREFIX}interval": "3 s"}))
    assert env.get_checkpoint_config().get_checkpoint_interval() == 3000


def test_enabling_checkpoints_changes_the_mode_only_if_one_is_given() -> None:
    env = environment().enable_checkpointing("1 s", CheckpointingMode.AT_LEAST_ONCE)
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    env.enable_checkpointing("2 s")
    assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE


def test_enabling_checkpoints_takes_the_most_common_settings(tmp_path: Path) -> None:
    env = environment().enable_checkpointing("1 s", dir=tmp_path, unaligned=True, num_retained=3)
    settings = checkpoint_settings(env._configuration)
    assert settings is not None
    assert settings.storage == FileSystemCheckpointStorage(tmp_path)
    assert (settings.unaligned, settings.num_retained) == (True, 3)
    env.enable_checkpointing("2 s")
    assert env.get_checkpoint_config().is_unaligned_checkpoints_enabled()
    env.enable_checkpointing("2 s", unaligned=False)
    assert not env.get_checkpoint_config().is_unaligned_checkpoints_enabled()


def test_the_environment_takes_a_savepoint_directory_and_a_job_id() -> None:
    env = environment()
    assert env.get_default_savepoint_directory() is None
    env.set_default_savepoint_directory(Path("/savepoints"))
    assert env.get_default_savepoint_directory() == "/savepoints"
    env.set_default_savepoint_directory("s3://bucket/savepoints")
    assert env.get_default_savepoint_directory() == "s3://bucket/savepoints"
    assert env.set_job_id("orders") is env
    with pytest.raises(ConfigurationError, match=r"pipeline\.job-id"):
        env.set_job_id("orders/1")
