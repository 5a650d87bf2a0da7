"""How a time to live is configured, and which states can have one."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast import (
    CheckpointedFunction,
    Configuration,
    Duration,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.api.streams.connected import BroadcastStream
from holdfast.api.ttl import CleanupStrategies, IncrementalCleanup, PassCleanup
from holdfast.config.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.config.checkpoint_options import INCREMENTAL as INCREMENTAL_CHECKPOINTS
from holdfast.errors import ConfigurationError, StateDescriptorError
from holdfast.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.ttl import StateTtlConfigBuilder

UpdateType = StateTtlConfig.UpdateType
StateVisibility = StateTtlConfig.StateVisibility
TtlTimeCharacteristic = StateTtlConfig.TtlTimeCharacteristic
MONTH = 30 * 24 * 3_600_000


def builder(ttl: Any = 1000) -> StateTtlConfigBuilder:
    return StateTtlConfig.new_builder(ttl)


def test_by_default_writing_renews_and_nothing_expired_is_returned() -> None:
    assert builder().build() == StateTtlConfig(
        1000,
        update_type=UpdateType.OnCreateAndWrite,
        state_visibility=StateVisibility.NeverReturnExpired,
        ttl_time_characteristic=TtlTimeCharacteristic.ProcessingTime,
        cleanup_strategies=CleanupStrategies(in_full_snapshot=False, in_background=True),
    )
    assert builder().build().is_enabled()


def test_keywords_do_what_the_builder_does() -> None:
    built = (
        builder("1 h").update_ttl_on_read_and_write().use_event_time().cleanup_full_snapshot()
    ).build()
    cleanup = CleanupStrategies(in_full_snapshot=True)
    assert built == StateTtlConfig(
        timedelta(hours=1),
        update_type="on_read_and_write",
        ttl_time_characteristic="EventTime",
        cleanup_strategies=cleanup,
    )
    with pytest.raises(ConfigurationError, match=r"update_type: expected one of .*, got 'often'"):
        StateTtlConfig("1 h", update_type="often")
    with pytest.raises(ConfigurationError, match="StateTtlConfig: ttl: expected a duration"):
        StateTtlConfig(0)


@pytest.mark.parametrize(
    ("ttl", "milliseconds"),
    [
        (1, 1),
        ("10 s", 10_000),
        (timedelta(minutes=2), 120_000),
        (Duration.of_days(1), 86_400_000),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_ttl_is_any_duration(ttl: Any, milliseconds: int) -> None:
    assert builder(ttl).build().ttl_ms == milliseconds


@pytest.mark.parametrize("ttl", [0, -1, "0 s", timedelta(0), timedelta(microseconds=999), True])
def test_a_ttl_is_at_least_a_millisecond(ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="new_builder: ttl"):
        builder(ttl)


def test_every_method_of_the_builder_says_one_thing() -> None:
    assert builder().update_ttl_on_read_and_write().build().update_type is (
        UpdateType.OnReadAndWrite
    )
    again = builder().update_ttl_on_read_and_write().update_ttl_on_create_and_write().build()
    assert again.update_type is UpdateType.OnCreateAndWrite
    relaxed = builder().return_expired_if_not_cleaned_up()
    assert relaxed.build().state_visibility is StateVisibility.ReturnExpiredIfNotCleanedUp
    assert relaxed.never_return_expired().build() == builder().build()
    timed = builder().use_event_time()
    assert timed.build().ttl_time_characteristic is TtlTimeCharacteristic.EventTime
    assert timed.use_processing_time().build() == builder().build()
    disabled = builder().set_update_type(UpdateType.Disabled).build()
    assert not disabled.is_enabled()


@pytest.mark.parametrize(
    ("made", "passes"),
    [
        (lambda b: b, PassCleanup(1000, MONTH)),
        (lambda b: b.disable_cleanup_in_background(), None),
        (lambda b: b.cleanup_full_snapshot(), PassCleanup(1000, MONTH)),
        (lambda b: b.cleanup_incrementally(5), None),
        (lambda b: b.cleanup_in_rocksdb_compact_filter(), PassCleanup(1000, MONTH)),
        (lambda b: b.cleanup_in_rocksdb_compact_filter(7, "1 h"), PassCleanup(7, 3_600_000)),
        (
            lambda b: b.cleanup_in_rocksdb_compact_filter(7, 0).disable_cleanup_in_background(),
            PassCleanup(7, 0),
        ),
        (
            lambda b: b.cleanup_in_rocksdb_compact_filter(7).cleanup_incrementally(1, True),
            PassCleanup(7, MONTH),
        ),
    ],
)
def test_only_the_default_cleanup_can_be_turned_off(
    made: Callable[[StateTtlConfigBuilder], StateTtlConfigBuilder], passes: PassCleanup | None
) -> None:
    assert made(builder()).build().cleanup_strategies.passes == passes


def test_explicit_strategies_stand_beside_each_other() -> None:
    made = builder().cleanup_full_snapshot().cleanup_incrementally(5, True)
    assert made.disable_cleanup_in_background().build().cleanup_strategies == CleanupStrategies(
        in_full_snapshot=True,
        incremental=IncrementalCleanup(5, run_cleanup_for_every_record=True),
        in_background=False,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda b: b.cleanup_incrementally(0),
            "cleanup_size: expected a whole number of at least 1",
        ),
        (
            lambda b: b.cleanup_incrementally(5, "no way"),
            "run_cleanup_for_every_record: expected true or",
        ),
        (lambda b: b.cleanup_in_rocksdb_compact_filter(0), "query_time_after_num_entries"),
        (lambda b: b.cleanup_in_rocksdb_compact_filter(1, -1), "periodic_compaction_time"),
        (lambda b: b.set_update_type(1), "one of StateTtlConfig.UpdateType"),
        (lambda b: b.set_state_visibility("never"), "one of StateTtlConfig.StateVisibility"),
        (lambda b: b.set_ttl_time_characteristic(None), "{ProcessingTime, EventTime}"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_said(
    wrong: Callable[[StateTtlConfigBuilder], object], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        wrong(builder())
    assert message in str(error.value)


def test_a_configuration_is_a_value() -> None:
    made = builder().update_ttl_on_read_and_write().cleanup_incrementally(5).build()
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert hash(again) == hash(made)
    assert again.update_type is UpdateType.OnReadAndWrite
    with pytest.raises(FrozenInstanceError):
        made.ttl_ms = 5  # type: ignore[misc]


# Descriptors


def test_a_descriptor_has_a_ttl_from_its_constructor_or_from_the_method() -> None:
    config = builder().build()
    given = ValueStateDescriptor("a", int, ttl=config)
    enabled = ValueStateDescriptor("a", int)
    assert enabled.ttl is None
    enabled.enable_time_to_live(config)
    assert enabled.ttl is given.ttl is config
    assert enabled == given == ValueStateDescriptor("a")
    assert pickle.loads(pickle.dumps(enabled)).ttl == config


def test_a_disabled_ttl_counts_as_none() -> None:
    disabled = builder().set_update_type(UpdateType.Disabled).build()
    assert ValueStateDescriptor("a", ttl=disabled).time_to_live is None
    assert ValueStateDescriptor("a", ttl=builder().build()).time_to_live == builder().build()


@pytest.mark.parametrize("wrong", [10, "1 h", timedelta(1), builder()])
def test_a_ttl_is_given_by_a_configuration_that_was_built(wrong: Any) -> None:
    with pytest.raises(StateDescriptorError, match=r"'a'.*a time to live is a StateTtlConfig"):
        ValueStateDescriptor("a", ttl=wrong)
    with pytest.raises(StateDescriptorError, match=r"'a'.*a time to live is a StateTtlConfig"):
        ValueStateDescriptor("a").enable_time_to_live(wrong)


def test_a_name_has_no_null_character() -> None:
    with pytest.raises(StateDescriptorError, match="null character"):
        ListStateDescriptor("a\0ttl", int)


# Operator state


class Keeps(CheckpointedFunction, MapFunction):
    """Asks for operator state with a time to live."""

    def __init__(self, method: str, descriptor: Any) -> None:
        self.method, self.descriptor = method, descriptor

    def initialize_state(self, context: Any) -> None:
        getattr(context.get_operator_state_store(), self.method)(self.descriptor)

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("get_list_state", ListStateDescriptor),
        ("get_union_list_state", ListStateDescriptor),
        ("get_broadcast_state", MapStateDescriptor),
    ],
)
def test_operator_state_has_no_ttl(method: str, kind: Any) -> None:
    with pytest.raises(StateDescriptorError, match=r"'kept' cannot have a .* only keyed state"):
        OperatorHarness(Keeps(method, kind("kept", ttl=builder().build())))


def test_a_broadcast_state_has_no_ttl() -> None:
    rules = MapStateDescriptor("rules", str, str, ttl=builder().build())
    stream: Any = None
    with pytest.raises(StateDescriptorError, match=r"'rules' cannot have a .* only keyed state"):
        BroadcastStream(stream, (rules,))


# What tasks are told


def test_the_option_says_whether_checkpoints_are_incremental_and_the_backend_sets_it() -> None:
    configuration = Configuration()
    env = StreamExecutionEnvironment(cast("Any", None), configuration)
    plain = EmbeddedRocksDBStateBackend(compression="lz4")
    incremental = replace(plain, enable_incremental_checkpointing=True)
    env.set_state_backend(plain)
    assert env.get_state_backend() == plain
    configuration.set(INCREMENTAL_CHECKPOINTS, True)
    assert env.get_state_backend() == incremental
    configuration.set(INCREMENTAL_CHECKPOINTS, False)
    assert env.get_state_backend() == plain
    env.set_state_backend(incremental)
    assert env.get_state_backend() == incremental
    assert configuration.get(INCREMENTAL_CHECKPOINTS) is True
    env.set_state_backend(HashMapStateBackend())
    assert env.get_state_backend() == HashMapStateBackend()
