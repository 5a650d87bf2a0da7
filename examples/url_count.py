"""URL visit count: a stateful job.

From an access log, one row per request, how often was every URL visited so far? A
single row does not tell; the count until now is the state.

Run it with `make example-url_count`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from holdfast import DataStream, RuntimeContext

REQUESTS = [
    {
        "@timestamp": "18/Apr/2019:00:00:00",
        "remote_addr": "127.0.0.1",
        "request": "GET",
        "url": "/api/a",
    },
    {
        "@timestamp": "18/Apr/2019:00:00:01",
        "remote_addr": "127.0.0.1",
        "request": "POST",
        "url": "/api/b",
    },
    {
        "@timestamp": "18/Apr/2019:00:00:00",
        "remote_addr": "127.0.0.1",
        "request": "GET",
        "url": "/api/a",
    },
]


class CountVisits(KeyedProcessFunction):
    """Counts the requests of every URL."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the count."""
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        """One more visit."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.url, count


def url_count(requests: DataStream) -> DataStream:
    """The job: requests in, a URL and its count so far out, for every request."""
    return (
        requests.key_by("url")
        .process(CountVisits(), output_type="url string, count bigint")
        .uid("url-count")
        .name("count visits")
    )


def main() -> None:
    """Run the job on the data above."""
    env = StreamExecutionEnvironment.get_execution_environment()
    # One subtask, so that the output comes in the order of the input.
    env.set_parallelism(1)
    counts = url_count(env.from_collection(REQUESTS))
    for row in counts.execute_and_collect("url-count"):
        print(json.dumps(row._asdict()))


if __name__ == "__main__":
    main()
