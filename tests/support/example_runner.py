"""Runs examples one after the other, in one process and one Spark session.

Each line of standard input is the path of an example. It runs as a script, and is answered by
a line of JSON on standard output: what it printed, and how it failed if it did.

Examples that are killed midway, or that take arguments, need a process of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path


def run(path: str) -> dict[str, str | None]:
    """Run an example; what it printed, and how it failed."""
    sys.argv = [path]
    printed, failure = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(path, run_name="__main__")
        except (Exception, SystemExit):
            failure = traceback.format_exc()
    return {"printed": printed.getvalue(), "failure": failure}


def main() -> None:
    """Answer until there is no more input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What Spark's JVM writes must not come among the answers.
    os.dup2(2, 1)
    for line in sys.stdin:
        path = line.strip()
        # As for a script; workers are told of it when the session is made.
        directory = str(Path(path).parent)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        answers.write(json.dumps(run(path)) + "\n")


if __name__ == "__main__":
    main()
