"""Where a stream leaves the job towards the driver or a Spark sink.

These are descriptions only; `holdfast.spark` carries them out, once per epoch, on
the DataFrame that holds the epoch's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class SparkSink:
    """Writes with one of Spark's DataFrame writers.

    With exactly once, rows wait for their checkpoint and are written with it: once, unless
    the driver dies in the middle of that, for Spark's writers do not know what they have
    written before. Otherwise they are written at the end of every epoch.

    Args:
        format: Name of the format: "parquet", "delta", "jdbc", "noop", ...
        options: The writer's options, such as `{"path": "/data/out"}`.
        mode: What happens to rows that are there already.
        partition_by: Columns to partition the output by.
        staged: Whether rows wait for their checkpoint with exactly once. If not, they are
            written at the end of every epoch, and may repeat after a recovery.
    """

    format: str
    options: dict[str, Any] = field(default_factory=dict)
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    staged: bool = True


@dataclass(frozen=True)
class ForeachBatchSink:
    """Hands the DataFrame of an epoch, or of a checkpoint, to a function on the driver."""

    function: Callable[[Any, int], object]


@dataclass(frozen=True)
class PrintSink:
    """Prints every element on the driver."""

    label: str | None = None


@dataclass(frozen=True)
class CollectSink:
    """Brings every element to the driver's own iterator."""

    collector: Callable[[list[Any]], None]
