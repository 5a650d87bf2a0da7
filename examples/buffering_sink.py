"""Buffering sink: operator state that survives the loss of the driver.

A sink collects elements and writes them out, one line of JSON per flush, when it has
as many as the threshold says. What it holds in between is list state: it belongs to
the subtask, not to a key, and is part of every checkpoint.

    buffering_sink.py [OUTPUT] [--checkpoints DIRECTORY] [--threshold N]

Kill it midway and start it again with the same arguments. The job has a lasting id, so
it continues from its newest checkpoint, buffer included. The file is no part of the
checkpoint: lines that were written after it are written again. So lines may repeat, and
none is missing.

Run it with `make example-buffering_sink`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast import (
    CheckpointedFunction,
    ListStateDescriptor,
    SinkFunction,
    StreamExecutionEnvironment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from holdfast import JobExecutionResult
    from holdfast.functions import FunctionInitializationContext, FunctionSnapshotContext

JOB_ID = "buffering-sink"
WORDS = ("anchor", "buoy", "cleat")
ELEMENTS = 84
PER_EPOCH = 8
"""No multiple of the threshold: nearly every epoch ends with something in the buffer."""


class Element(NamedTuple):
    """What the sink takes."""

    word: str
    number: int


def element(number: int) -> Element:
    """The element of that number."""
    return Element(WORDS[number % len(WORDS)], number)


class BufferingSink(SinkFunction, CheckpointedFunction):
    """Writes elements out, `threshold` at a time."""

    def __init__(self, path: str, threshold: int) -> None:
        """A sink that appends to the file at `path`."""
        self.path = path
        self.threshold = threshold
        self.buffered: list[Element] = []

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Take up again what was in the buffer."""
        descriptor = ListStateDescriptor("buffered-elements", Element)
        self.state = ctx.get_operator_state_store().get_list_state(descriptor)
        if ctx.is_restored():
            self.buffered.extend(self.state.get())

    def invoke(self, value: Element, context: Any) -> None:
        """Buffer one element; the one that reaches the threshold sends them all out."""
        self.buffered.append(value)
        if len(self.buffered) == self.threshold:
            with Path(self.path).open("a") as file:
                file.write(json.dumps(self.buffered) + "\n")
            self.buffered.clear()

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Put the buffer into the state."""
        self.state.update(self.buffered)


def run(output: str, checkpoints: str, threshold: int) -> JobExecutionResult:
    """Run the job to its end, from its newest checkpoint if it has one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    # One subtask, so that the lines come in the order of the input.
    env.set_parallelism(1).set_max_events_per_epoch(PER_EPOCH)
    env.enable_checkpointing(100).set_job_id(JOB_ID)
    env.get_checkpoint_config().set_checkpoint_storage_dir(checkpoints)
    elements = env.from_generator(element, count=ELEMENTS).uid("elements")
    elements.add_sink(BufferingSink(output, threshold)).uid("buffering-sink")
    return env.execute("buffering-sink")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job, and say where it began."""
    parser = argparse.ArgumentParser(description="A sink that buffers, with checkpoints.")
    parser.add_argument("output", nargs="?", help="file to append to")
    parser.add_argument("--checkpoints", help="directory of checkpoints")
    parser.add_argument("--threshold", type=int, default=7, help="elements per line")
    given = parser.parse_args(arguments)
    scratch = tempfile.mkdtemp(prefix="buffering-sink-")
    output = str(Path(given.output or f"{scratch}/flushed.jsonl").absolute())
    result = run(output, given.checkpoints or f"{scratch}/checkpoints", given.threshold)
    checkpoints = result.statistics.checkpoints
    assert checkpoints is not None
    restored = checkpoints.latest_restored
    begun = "anew" if restored is None else f"from checkpoint {restored.checkpoint_id}"
    print(f"started {begun}; took {checkpoints.completed} checkpoints; wrote {output}")


if __name__ == "__main__":
    main()
