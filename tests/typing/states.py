"""What type checkers infer for state. `make check` checks this file; nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

from holdfast import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    ValueState,
    ValueStateDescriptor,
)
from holdfast.api.ttl import StateTtlConfigBuilder


class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


def descriptors_carry_their_types_into_states(ctx: RuntimeContext) -> None:
    assert_type(ctx.get_state(ValueStateDescriptor("n", int)), ValueState[int])
    assert_type(ctx.get_state(ValueStateDescriptor("n", int)).value(), int | None)
    assert_type(ctx.get_state(ValueStateDescriptor("n", list[str])), ValueState[list[str]])
    assert_type(ctx.get_list_state(ListStateDescriptor("n", str)), ListState[str])
    assert_type(ctx.get_map_state(MapStateDescriptor("n", str, float)), MapState[str, float])
    assert_type(ctx.get_reducing_state(ReducingStateDescriptor("n", min, int)), ReducingState[int])
    assert_type(
        ctx.get_aggregating_state(AggregatingStateDescriptor("n", Mean())),
        AggregatingState[int, float],
    )


def a_type_as_text_or_no_type_gives_any(ctx: RuntimeContext) -> None:
    assert_type(ctx.get_state(ValueStateDescriptor("n", "bigint")), ValueState[Any])
    assert_type(ctx.get_state(ValueStateDescriptor("n")), ValueState[Any])


def builders_return_themselves() -> None:
    builder = StateTtlConfig.new_builder("1 h")
    assert_type(builder.update_ttl_on_read_and_write(), StateTtlConfigBuilder)
    assert_type(builder.return_expired_if_not_cleaned_up().build(), StateTtlConfig)
