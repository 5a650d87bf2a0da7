"""Maps kinds of nodes to operator classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.api.streams.graph import OperatorKind
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

KINDS: Final[dict[OperatorKind, type[Operator]]] = {
    OperatorKind.MAP: MapOperator,
    OperatorKind.FILTER: FilterOperator,
    OperatorKind.FLAT_MAP: FlatMapOperator,
    OperatorKind.PROCESS: ProcessOperator,
    OperatorKind.KEYED_PROCESS: ProcessOperator,
    OperatorKind.REDUCE: ReduceOperator,
    OperatorKind.TIMESTAMPS: TimestampOperator,
    OperatorKind.CO_MAP: CoMapOperator,
    OperatorKind.CO_FLAT_MAP: CoFlatMapOperator,
    OperatorKind.CO_PROCESS: CoProcessOperator,
    OperatorKind.KEYED_CO_PROCESS: CoProcessOperator,
    OperatorKind.BROADCAST_PROCESS: BroadcastOperator,
    OperatorKind.KEYED_BROADCAST_PROCESS: BroadcastOperator,
    OperatorKind.INTERVAL_JOIN: IntervalJoinOperator,
    OperatorKind.WINDOW: WindowOperator,
    OperatorKind.WINDOW_JOIN: WindowOperator,
    OperatorKind.LOOKUP_JOIN: LookupJoinOperator,
    OperatorKind.SINK_FUNCTION: SinkOperator,
    OperatorKind.WRITER: WriterOperator,
}
"""The operator class of every kind that runs in tasks."""
