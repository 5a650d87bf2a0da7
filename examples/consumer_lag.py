"""Consumer lag: a stateless job.

A producer appends to a queue, several consumers read from it, and now and then
somebody notes everyone's offset. The lag of a consumer is the producer's offset
minus its own; each row suffices for that, so nothing has to be remembered.

Run it with `make example-consumer_lag`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast import StreamExecutionEnvironment

if TYPE_CHECKING:
    from typing import Any

    from holdfast import DataStream

OFFSETS = [
    {
        "timestamp": 1555516800,
        "offset": {"producer": 15, "consumer0": 10, "consumer1": 7, "consumer2": 12},
    }
]


def lag(row: Any) -> dict[str, Any]:
    """How far every consumer is behind the producer."""
    produced = row.offset["producer"]
    behind = {who: produced - at for who, at in row.offset.items() if who != "producer"}
    return {"timestamp": row.timestamp, "lag": behind}


def consumer_lag(offsets: DataStream) -> DataStream:
    """The job: offsets in, lags out."""
    return offsets.map(lag, output_type="timestamp bigint, lag map<string, bigint>").name("lag")


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    offsets = env.from_collection(OFFSETS, "timestamp bigint, offset map<string, bigint>")
    for row in consumer_lag(offsets).execute_and_collect("consumer-lag"):
        print(json.dumps(row._asdict()))


if __name__ == "__main__":
    main()
