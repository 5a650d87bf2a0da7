"""Which operator runs each kind of node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.api.streams.graph import Kind
from holdfast.runtime.operators.co import (
    BroadcastOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
)
from holdfast.runtime.operators.element import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ReduceOperator,
    SinkOperator,
)
from holdfast.runtime.operators.interval_join import IntervalJoinOperator
from holdfast.runtime.operators.lookup_join import LookupJoinOperator
from holdfast.runtime.operators.process import ProcessOperator
from holdfast.runtime.operators.timestamps import TimestampOperator
from holdfast.runtime.operators.writer import WriterOperator
from holdfast.runtime.windows.operator import WindowOperator

if TYPE_CHECKING:
    from holdfast.runtime.operators.base import Operator

KINDS: Final[dict[Kind, type[Operator]]] = {
    Kind.MAP: MapOperator,
    Kind.FILTER: FilterOperator,
    Kind.FLAT_MAP: FlatMapOperator,
    Kind.PROCESS: ProcessOperator,
    Kind.KEYED_PROCESS: ProcessOperator,
    Kind.REDUCE: ReduceOperator,
    Kind.TIMESTAMPS: TimestampOperator,
    Kind.CO_MAP: CoMapOperator,
    Kind.CO_FLAT_MAP: CoFlatMapOperator,
    Kind.CO_PROCESS: CoProcessOperator,
    Kind.KEYED_CO_PROCESS: CoProcessOperator,
    Kind.BROADCAST_PROCESS: BroadcastOperator,
    Kind.KEYED_BROADCAST_PROCESS: BroadcastOperator,
    Kind.INTERVAL_JOIN: IntervalJoinOperator,
    Kind.WINDOW: WindowOperator,
    Kind.WINDOW_JOIN: WindowOperator,
    Kind.LOOKUP_JOIN: LookupJoinOperator,
    Kind.SINK_FUNCTION: SinkOperator,
    Kind.WRITER: WriterOperator,
}
"""The operator class of every kind that runs in tasks."""
