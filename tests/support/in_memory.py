"""Where files of tests do not wait for a disk."""

from __future__ import annotations

import os

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A directory in memory; None, which stands for the usual one, where there is none."""
