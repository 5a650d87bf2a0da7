"""Running a part of a benchmark in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def in_fresh_process(module: str, arguments: list[str], who: str, say: Console) -> Any:
    """What a module gives out as its last line, as JSON; what it says before is passed on."""
    command = [sys.executable, "-m", module, "--one", *arguments]
    said = ""
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as child:
            assert child.stdout is not None
            for said in child.stdout:
                if not said.startswith(("[", "{")):
                    say.print(f"{who}: {said.rstrip()}")
        if child.returncode:
            complaints.seek(0)
            sys.stderr.write(complaints.read())
            raise subprocess.CalledProcessError(child.returncode, command)
    return json.loads(said)
