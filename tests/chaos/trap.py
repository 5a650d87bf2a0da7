"""Points at which a process of the job dies by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.strikes import Strike


class Trap:
    """Lets a process of the job die at a point; set at any time, while the job runs or not."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._markers = 0
        self._set: Strike | None = None

    def set(self, strike: Strike) -> None:
        """Let the next process die that comes to this point; unless that is set already."""
        if self._set == strike:
            return
        self._set = strike
        self._markers += 1
        fault: dict[str, Any] = {
            "point": strike.kind,
            "action": "kill",
            "once": str(self._marker),
        }
        if strike.uid is not None:
            fault["uid"] = strike.uid
        fresh = self.file_in(self._directory).with_suffix(".new")
        fresh.write_text(json.dumps([fault]))
        fresh.rename(self.file_in(self._directory))

    def has_struck(self) -> bool:
        """Whether a process has died there; then another may be set."""
        struck = self._marker.exists()
        if struck:
            self._set = None
        return struck

    @property
    def is_set(self) -> bool:
        """Whether a process is to die that has not."""
        return self._set is not None and not self.has_struck()

    @property
    def _marker(self) -> Path:
        return self._directory / f"struck-{self._markers}"

    @staticmethod
    def file_in(directory: Path) -> Path:
        """Where the job looks for faults."""
        return directory / "faults.json"
