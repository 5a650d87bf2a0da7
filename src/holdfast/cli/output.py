"""What commands print: tables or JSON on standard output, the rest on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FAILED: Final = 1
"""Exit code of an operation or a job that failed. Wrong arguments exit with 2."""
UNKNOWN: Final = 3
"""Exit code if there is no such job, savepoint or file."""
UNREACHABLE: Final = 4
"""Exit code if the driver of a job does not answer."""

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class CommandError(click.ClickException):
    """An error that ends the command with a line and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        """See `FAILED`, `UNKNOWN` and `UNREACHABLE`."""
        super().__init__(message)
        # Click declares it as one number for all errors of a class.
        self.exit_code = exit_code  # type: ignore[misc]


def as_json(value: Any) -> None:
    """Print a value as one JSON document."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows below a head, in aligned columns."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def size(number: float) -> str:
    """Bytes for people.

    Example:
        >>> size(1_230_000)
        '1.2 MB'
    """
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


@contextmanager
def progress(what: str) -> Iterator[Callable[[], None]]:
    """Show on a terminal that something takes its time; the block calls what it is given."""
    started = time.monotonic()
    shown = sys.stderr.isatty()

    def tick() -> None:
        if shown:
            passed = time.monotonic() - started
            sign = _SPINNER[int(passed * 10) % len(_SPINNER)]
            sys.stderr.write(f"\r\x1b[K{sign} {what} · {passed:.0f} s")
            sys.stderr.flush()

    try:
        tick()
        yield tick
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
