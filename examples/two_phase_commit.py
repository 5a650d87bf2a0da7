"""Transactions of your own: a sink that takes part in checkpoints.

A ledger takes entries in transactions. Here it is a directory: an open transaction is a
file in `open`, and to commit it is to move that file to `committed`. Any system will do
in which a transaction can be made durable first and be committed later, by its name,
from another process.

    two_phase_commit.py [LEDGER] [--checkpoints DIRECTORY]

Kill it midway and start it again with the same arguments. What the newest checkpoint
contains is committed, once; what was written after it is dropped and computed again. At
its end the program reads the ledger and checks that no entry is missing and none is there
twice.

Run it with `make example-two_phase_commit`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import StreamExecutionEnvironment
from holdfast.sinks import TwoPhaseCommitSinkFunction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from holdfast import JobExecutionResult

JOB_ID = "two-phase-commit"
ENTRIES = 120
PER_EPOCH = 12


class Ledger(TwoPhaseCommitSinkFunction):
    """Writes the entries of an epoch in a transaction, named by 32 hexadecimal digits."""

    def __init__(self, directory: str) -> None:
        """A ledger in that directory, which exists."""
        self.opened = Path(directory) / "open"
        self.committed = Path(directory) / "committed"

    def begin_transaction(self) -> str:
        """Open a file under a name that no other has.

        That this gives a `str` says how checkpoints hold transactions.
        """
        transaction = uuid.uuid4().hex
        self.file = (self.opened / transaction).open("x")
        return transaction

    def invoke(self, transaction: str, value: int, context: Any) -> None:
        """Write one entry."""
        self.file.write(json.dumps(value) + "\n")

    def pre_commit(self, transaction: str) -> None:
        """Bring all entries to disk: from now on a commit cannot fail for want of them."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def commit(self, transaction: str) -> None:
        """Move the file, unless that was done before: a commit may come twice."""
        if (self.opened / transaction).exists():
            (self.opened / transaction).rename(self.committed / transaction)

    def abort(self, transaction: str) -> None:
        """Remove the file; one that is committed is not there any more."""
        (self.opened / transaction).unlink(missing_ok=True)


def run(ledger: Path, checkpoints: str) -> JobExecutionResult:
    """Run the job to its end, from its newest checkpoint if it has one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).set_max_events_per_epoch(PER_EPOCH)
    env.enable_checkpointing(100).set_job_id(JOB_ID)
    env.get_checkpoint_config().set_checkpoint_storage_dir(checkpoints)
    numbers = env.from_generator(lambda number: number, count=ENTRIES, type_info=int)
    numbers.uid("numbers").add_sink(Ledger(str(ledger))).uid("ledger")
    return env.execute("two-phase-commit")


def check(ledger: Path) -> int:
    """Number of entries that are committed, having checked that they are the right ones."""
    files = (ledger / "committed").iterdir()
    entries = sorted(json.loads(line) for file in files for line in file.read_text().splitlines())
    left = len(list((ledger / "open").iterdir()))
    if entries != list(range(ENTRIES)) or left:
        raise SystemExit(
            f"{ledger} holds {len(entries)} entries, and not each once; {left} transactions are "
            "left open"
        )
    return len(entries)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job, and check what it wrote."""
    parser = argparse.ArgumentParser(description="Writes to a ledger, exactly once.")
    parser.add_argument("ledger", nargs="?", help="directory of the ledger")
    parser.add_argument("--checkpoints", help="directory of checkpoints")
    given = parser.parse_args(arguments)
    scratch = tempfile.mkdtemp(prefix="two-phase-commit-")
    ledger = Path(given.ledger or f"{scratch}/ledger").absolute()
    for directory in ("open", "committed"):
        (ledger / directory).mkdir(parents=True, exist_ok=True)
    result = run(ledger, given.checkpoints or f"{scratch}/checkpoints")
    checkpoints = result.statistics.checkpoints
    assert checkpoints is not None
    restored = checkpoints.latest_restored
    begun = "anew" if restored is None else f"from checkpoint {restored.checkpoint_id}"
    print(f"started {begun}; {check(ledger)} entries, each once, in {ledger}")


if __name__ == "__main__":
    main()
