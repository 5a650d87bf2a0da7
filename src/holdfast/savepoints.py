"""Savepoints outside a running job: compare, rewrite, dispose."""

from holdfast.checkpoint.savepoint.comparison import (
    SavepointComparison,
)
from holdfast.checkpoint.savepoint.storage import (
    dispose_savepoint,
)
from holdfast.state_processor.max_parallelism import (
    rewrite_max_parallelism,
)

__all__ = [
    "SavepointComparison",
    "dispose_savepoint",
    "rewrite_max_parallelism",
]
