"""What a job stands on, and how it gives way: the clock, disks, storage, local copies."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.storage.file_system import FileSystemFiles
from tests.chaos.disks import LOOK_EVERY, SmallDisk, may_mount
from tests.chaos.places import newest_checkpoint, state_of, storage_of
from tests.chaos.seams import CALM, Seams, Weather
from tests.chaos.strikes import CLOCK, FLAKY, FULL_CHECKPOINTS, FULL_LOCAL, MISSING_FILE, SLOW

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.chaos.driver import Driver
    from tests.chaos.job import JobOptions
    from tests.chaos.strikes import Strike

HOURS: Final = 6
"""How far the clock is wrong at most, ahead or behind; no state lives shorter than that."""
BYTES: Final = 100
"""Of so many that are not zero, one bit flips, if many do."""
_HOUR_MS: Final = 3_600_000


class RestoreTarget:
    """The clock, the disks and the storage of one run."""

    def __init__(self, directory: Path, *, small: bool) -> None:
        """Lay it out; with `small` disks of their own, where that is permitted."""
        self._seams = Seams(directory)
        self._directory = directory
        self._disks: dict[str, SmallDisk] = {}
        if small and may_mount():
            self._disks = {
                kind: SmallDisk(directory / "disks" / kind)
                for kind in (FULL_CHECKPOINTS, FULL_LOCAL)
            }

    def under(self, options: JobOptions) -> JobOptions:
        """The same options for a job that stands on this ground."""
        if not self._disks:
            return options
        data = {kind: str(disk.data) for kind, disk in self._disks.items()}
        return replace(options, checkpoints=data[FULL_CHECKPOINTS], state=data[FULL_LOCAL])

    def is_storage(self, kind: str) -> bool:
        """Whether only storage that fails when it is told to gives way so."""
        return kind in (FLAKY, SLOW) or (kind == FULL_CHECKPOINTS and not self._disks)

    def clear(self) -> None:
        """Let go of the disks, with all that is on them."""
        for disk in self._disks.values():
            disk.unmount()

    @contextmanager
    def giving_way(self, strike: Strike, driver: Driver) -> Iterator[str]:
        """Let something give way, as long as this lasts; what it is. The clock stays wrong."""
        match strike.kind:
            case kind if kind == CLOCK:
                offset = int((2 * strike.strength - 1) * HOURS * _HOUR_MS)
                self._seams.step_clock(offset)
                yield f"is off by {offset / _HOUR_MS:+.2f} hours"
            case kind if kind in self._disks:
                with self._disks[kind].full():
                    yield "the disk is full"
            case kind if kind == FULL_CHECKPOINTS:
                with self._weather(Weather(full=True)):
                    yield "storage is full"
            case kind if kind == FULL_LOCAL:
                with _no_room(driver):
                    yield "workers may not write"
            case kind if kind == FLAKY:
                failing = 0.02 + 0.2 * strike.strength
                with self._weather(Weather(failing=failing)):
                    yield f"{failing:.0%} of requests fail"
            case kind if kind == SLOW:
                with self._weather(Weather(slow=0.5, delay=2 * strike.strength)):
                    yield f"requests take up to {2 * strike.strength:.1f} s"
            case unknown:
                raise ValueError(unknown)

    @contextmanager
    def _weather(self, weather: Weather) -> Iterator[None]:
        self._seams.change(weather)
        try:
            yield
        finally:
            self._seams.change(CALM)


@contextmanager
def _no_room(driver: Driver) -> Iterator[None]:
    """Let no worker write to a file, old or new; where disks cannot be made small."""
    ended = threading.Event()

    def limit(size: int) -> None:
        for process in driver.processes():
            if process.is_worker:
                with suppress(ProcessLookupError, PermissionError):
                    most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))

    def keep_limiting() -> None:
        while not ended.wait(LOOK_EVERY):
            limit(0)

    thread = threading.Thread(target=keep_limiting, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        limit(resource.RLIM_INFINITY)


@contextmanager
def hidden_file(
    directory: Path, options: JobOptions, kind: str, chance: random.Random
) -> Iterator[str]:
    """Let a file of the newest checkpoint be gone, as long as this lasts; which."""
    storage = storage_of(directory, options)
    newest = newest_checkpoint(storage)
    assert newest is not None, "the job has completed a checkpoint"
    name = metadata_name(newest.checkpoint_id)
    if kind == MISSING_FILE:
        needed = sorted(paths_of(load(FileSystemFiles(str(storage)), newest.checkpoint_id)))
        # All of it may be within the metadata.
        name = chance.choice(needed or [name])
    aside = directory / "hidden"
    shutil.move(storage / name, aside)
    try:
        yield name
    finally:
        shutil.move(aside, storage / name)


def flip_local_copies(directory: Path, options: JobOptions, chance: random.Random) -> int:
    """Damage every local copy of state that a checkpoint holds; how many files."""
    newest = newest_checkpoint(storage_of(directory, options))
    if newest is None:
        return 0
    flipped = 0
    for copy in state_of(directory, options).glob("holdfast-*/*.snapshots/chk-*"):
        if int(copy.name.rpartition("-")[2]) <= newest.checkpoint_id:
            files = [path for path in copy.rglob("*") if path.is_file() and path.stat().st_size]
            for path in files:
                # What is gone needs no damage.
                with suppress(FileNotFoundError):
                    flip_bits(path, chance)
                    flipped += 1
    return flipped


def flip_bits(path: Path, chance: random.Random) -> None:
    """Flip bits of a file, one or many, but not of others that share its content by a link."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    used = [place for place, byte in enumerate(content) if byte] or [0]
    for place in chance.sample(used, 1 if chance.random() < 0.5 else -(-len(used) // BYTES)):
        content[place] ^= 1 << chance.randrange(8)
    damaged = path.with_name(f".{path.name}.damaged")
    damaged.write_bytes(content)
    os.utime(damaged, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    damaged.chmod(stat.st_mode)
    damaged.replace(path)


@contextmanager
def held_still(driver: Driver) -> Iterator[None]:
    """Let the driver's Python side stand still for a moment."""
    os.kill(driver.session, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(driver.session, signal.SIGCONT)
