"""Where the local stores of a job lie, who owns them, and how they go away.

    <root>/holdfast-<job id>/owner.json             who may still need the job's stores
    <root>/holdfast-<job id>/<incarnation>/<operator>/<subtask>/    one store
    <root>/holdfast-<job id>/<incarnation>.snapshots/chk-<id>/<operator>/<subtask>-<attempt>/
                                                    copy of a store for a checkpoint
    <root>/.holdfast-<user id>.lock                 held while a job comes or goes
    <root>/.holdfast-new-<user id>-<random>/        on its way in
    <root>/.holdfast-gone-<user id>-<random>/       on its way out

A job directory appears complete with its owner, and disappears by one rename, both
under the lock: so a sweep never sees half a job, and never takes a living one.
Everything is readable by its user only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from holdfast.errors import ConfigurationError, HoldfastError, StateError, StoreFullError
from holdfast.state.machine import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_JOB: Final = "holdfast-"
_NEW: Final = ".holdfast-new-"
_GONE: Final = ".holdfast-gone-"
_OWNER: Final = "owner.json"
_LONGEST_PLAIN_NAME: Final = 80
_REFUSALS: Final[dict[int, tuple[type[HoldfastError], str]]] = {
    errno.ENOSPC: (StoreFullError, "free some space"),
    errno.EDQUOT: (StoreFullError, "free some space, raise the quota"),
    errno.EACCES: (ConfigurationError, "let this user write there"),
    errno.EPERM: (ConfigurationError, "let this user write there"),
    errno.ENOTDIR: (ConfigurationError, "remove the file that is in the way"),
    errno.ENAMETOOLONG: (ConfigurationError, "take a shorter path"),
}
"""What an error means. Those of the machine pass, and a restart may succeed; others do not."""


def local_root(local_dir: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Directory that holds all jobs: as set, else Spark's own, else the system's.

    Spark tells its Python workers the executor's directories, and a cluster manager
    tells its containers theirs; of several, the first is taken.
    """
    listed = environ.get("SPARK_LOCAL_DIRS") or environ.get("LOCAL_DIRS") or ""
    candidates = [local_dir or "", *listed.split(","), tempfile.gettempdir()]
    return Path(next(path.strip() for path in candidates if path.strip())).absolute()


def job_directory(local_dir: str | None, job_id: str) -> Path:
    """Directory of all local stores of one job; nothing is created."""
    return local_root(local_dir) / f"{_JOB}{file_name(job_id)}"


def store_directory(
    local_dir: str | None, job_id: str, incarnation: str, uid: str, subtask: int
) -> Path:
    """Directory of one store; nothing is created."""
    job = job_directory(local_dir, job_id)
    return job / file_name(incarnation) / file_name(uid) / str(subtask)


def snapshot_directory(
    local_dir: str | None, job_id: str, incarnation: str, checkpoint: int
) -> Path:
    """Directory of all local snapshots for one checkpoint; nothing is created."""
    # No store can be there: an incarnation's own directory has no dot in its name.
    job = job_directory(local_dir, job_id)
    return job / f"{file_name(incarnation)}.snapshots" / f"chk-{checkpoint}"


def file_name(name: str) -> str:
    """File name for any `name`; different names never share one, whatever the case.

    Example:
        >>> file_name("counts-by-word")
        'counts-by-word'
        >>> file_name("../Ärger").rpartition("~")[0]
        '____rger'
    """
    if len(name) <= _LONGEST_PLAIN_NAME and re.fullmatch(r"[a-z0-9_-]+", name):
        return name
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST_PLAIN_NAME]
    return f"{readable}~{xxhash.xxh3_128_hexdigest(name.encode('utf-8', 'surrogatepass'))}"


def make_private(directory: Path) -> None:
    """Create `directory` and what is missing above it, for this user only.

    Raises:
        ConfigurationError: This user may not create it, or the path is none.
        StoreFullError: The disk is full.
        StateError: The disk failed.
    """
    try:
        for missing in reversed([d for d in (directory, *directory.parents) if not d.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        kind, advice = _REFUSALS.get(error.errno or 0, (StateError, "check the disk"))
        raise kind(
            f"{directory}: the directory for local state cannot be created ({error.strerror}); "
            f"{advice}, or set `state.local-dir` to a directory that every executor can write to"
        ) from error


def claim_job(local_dir: str | None, job_id: str, owner: ProcessIdentity) -> Path:
    """Make the directory of a job, owned by `owner`, or take over the one there is.

    Claim it on every host before the first store is opened there. Claiming again is
    cheap, and names the new owner.

    Raises:
        StateError: The directory exists and belongs to another user.
    """
    job = job_directory(local_dir, job_id)
    if _is_there(job) and _owner_of(job) == owner:
        return job
    make_private(job.parent)
    with _lock(job.parent):
        if _is_there(job):
            _write_owner(job, owner)
        else:
            _make_job(job, owner)
    return job


def delete_incarnations(
    local_dir: str | None, job_id: str, *, but: str, snapshots: Iterable[str] = ()
) -> None:
    """Remove the stores of a job's other incarnations, and all snapshots but those named."""
    job = job_directory(local_dir, job_id)
    kept = {Path(snapshot) for snapshot in snapshots}
    for directory in job.glob("*/"):
        name = directory.name
        if name == file_name(but) or name.startswith(f"{file_name(but)}."):
            continue
        if any(snapshot.is_relative_to(directory) for snapshot in kept):
            continue
        shutil.rmtree(directory, ignore_errors=True)


def delete_job(local_dir: str | None, job_id: str) -> None:
    """Remove the directory of a job with all its stores, if it is there."""
    job = job_directory(local_dir, job_id)
    if not job.exists():
        return
    with _lock(job.parent):
        gone = _move_away(job)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def sweep_dead_jobs(local_dir: str | None) -> list[Path]:
    """Remove the directories of jobs whose driver is certainly dead; return them.

    Certain is what can be seen from here: a driver of this host that no longer runs,
    or that ran before the host restarted. Drivers of other hosts are left alone, and
    so is everything while another sweep is at work.
    """
    root = local_root(local_dir)
    if not root.is_dir():
        return []
    try:
        with _lock(root, wait=False) as locked:
            if not locked:
                return []
            swept = {job: gone for job in _dead_jobs(root) if (gone := _move_away(job))}
            # Nobody builds a job while the lock is held: what lies here was left behind.
            leftovers = [p for kind in (_NEW, _GONE) for p in root.glob(f"{kind}{os.getuid()}-*")]
    except OSError:
        # A root that cannot be written to holds no job of ours.
        return []
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    return sorted(swept)


def _dead_jobs(root: Path) -> Iterator[Path]:
    for job in sorted(root.glob(f"{_JOB}*")):
        owner = _owner_of(job)
        if owner is not None and owner.is_certainly_dead():
            yield job


@contextmanager
def _lock(root: Path, *, wait: bool = True) -> Iterator[bool]:
    # One lock file per user: in a shared directory another user's cannot be opened.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(root / f".holdfast-{os.getuid()}.lock", flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _make_job(job: Path, owner: ProcessIdentity) -> None:
    # Built aside and renamed, so that a job directory never exists without its owner.
    aside = job.parent / f"{_NEW}{os.getuid()}-{uuid.uuid4().hex}"
    aside.mkdir(mode=0o700)
    _write_owner(aside, owner)
    aside.rename(job)


def _move_away(job: Path) -> Path | None:
    gone = job.parent / f"{_GONE}{os.getuid()}-{uuid.uuid4().hex}"
    try:
        job.rename(gone)
    except OSError:
        # It vanished underneath, or is another user's.
        return None
    return gone


def _is_there(job: Path) -> bool:
    if not os.path.lexists(job):
        return False
    # In a directory anyone can write to, somebody else may have put something there first.
    if job.is_symlink() or not job.is_dir() or job.lstat().st_uid != os.getuid():
        raise StateError(
            f"{job}: exists and is not a directory of this user; remove it, or set "
            "`state.local-dir` to a directory that only this user can write to"
        )
    return True


def _write_owner(job: Path, owner: ProcessIdentity) -> None:
    fresh = job / f".{_OWNER}-{uuid.uuid4().hex}"
    fresh.write_text(json.dumps({"format": 1, **asdict(owner)}))
    fresh.rename(job / _OWNER)


def _owner_of(job: Path) -> ProcessIdentity | None:
    # Not found, half written by no one, or of a later format: in doubt, it has an owner
    # that nobody here knows.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads((job / _OWNER).read_text())
        if found.pop("format") == 1:
            return ProcessIdentity(**found)
    return None
