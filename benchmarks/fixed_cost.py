"""What an epoch costs when there is next to nothing in it.

Ten events per epoch, 26 epochs, of which the first six are not counted; the median of
the other twenty, measured as `benchmarks.harness` describes, under Spark's default
checkpoint file manager and under the faster one.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.harness import session, use_file_manager
from benchmarks.systems import Contender, contenders
from benchmarks.workloads import W1

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 10
COUNTED = 20
WARM_UP = 6


def milliseconds(contender: Contender, spark: SparkSession) -> float:
    """Median time of a near-empty epoch."""
    data_dir = data.prepare(W1, EVENTS, WARM_UP + COUNTED)
    result = contender.run(W1, contender.backend, data_dir, EVENTS, spark)
    return 1000 * statistics.median(result.seconds[-COUNTED:])


def main() -> None:
    """Measure every system under both file managers and print a table."""
    grid = Table(title="milliseconds of a near-empty epoch, two cores", title_justify="left")
    for column in ("system", "backend"):
        grid.add_column(column)
    for column in ("default file manager", "faster one"):
        grid.add_column(column, justify="right")
    spark = session()
    for contender in contenders():
        row = []
        for fast in (False, True):
            use_file_manager(spark, fast=fast)
            row.append(f"{milliseconds(contender, spark):.0f}")
        grid.add_row(contender.system, contender.backend, *row)
    Console().print(grid)


if __name__ == "__main__":
    main()
