"""Directories of local stores: paths, owners and removal.

    <root>/holdfast-<job id>.<run>/                 one run of a job, on this host
      owner.json                                    the driver
      used-by-<hash>.json                           an executor, if the driver is elsewhere
      workers/, closing                             see `runtime/worker.py`
      <job attempt>/<operator>/<subtask>/           one store
      <job attempt>.snapshots/chk-<id>/<operator>/<subtask>-<attempt>/
                                                    copy of a store for a checkpoint
    <root>/.holdfast-<user id>.lock                 locked while directories are added or removed
    <root>/.holdfast-new-<user id>-<random>/        being created
    <root>/.holdfast-gone-<user id>-<random>/       being removed

A run is one start of a job on one driver. If a new driver has taken over and the old one has
not noticed, the two share nothing here, so each removes only its own files. Another run
cannot use local state; it restores from checkpoint storage.

A job directory is created with its owner and removed by one rename, both under the lock. So
a sweep never sees a partial job and never removes a live one. Only the user can read it.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from holdfast.errors import ConfigurationError, HoldfastError, StateError, StoreFullError
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

WORKERS: Final = "workers"
"""Directory of a run with a file for every worker that has functions to close."""

_JOB: Final = "holdfast-"
_NEW: Final = ".holdfast-new-"
_GONE: Final = ".holdfast-gone-"
_OWNER: Final = "owner.json"
_USER: Final = "used-by-"
_LONGEST_PLAIN_NAME: Final = 80
_REFUSALS: Final[dict[int, tuple[type[HoldfastError], str]]] = {
    errno.ENOSPC: (StoreFullError, "free some space"),
    errno.EDQUOT: (StoreFullError, "free some space, raise the quota"),
    errno.EACCES: (ConfigurationError, "let this user write there"),
    errno.EPERM: (ConfigurationError, "let this user write there"),
    errno.ENOTDIR: (ConfigurationError, "remove the file that is in the way"),
    errno.ENAMETOOLONG: (ConfigurationError, "take a shorter path"),
}
"""Advice per error. Errors of the machine may go away on a restart; others do not."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors of a full disk."""


def local_root(local_dir: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Root directory of all jobs: the configured one, else Spark's, else the system's.

    Spark passes the executor's directories to its Python workers, and a cluster manager passes
    its own to containers; the first directory is used.
    """
    listed = environ.get("SPARK_LOCAL_DIRS") or environ.get("LOCAL_DIRS") or ""
    candidates = [local_dir or "", *listed.split(","), tempfile.gettempdir()]
    return Path(next(path.strip() for path in candidates if path.strip())).absolute()


def job_directory(local_dir: str | None, job_id: str, run: str = "") -> Path:
    """Directory of a job run's local stores; does not create it."""
    # Neither part contains a dot, so names of different runs never collide.
    return local_root(local_dir) / f"{_JOB}{file_name(job_id)}{f'.{file_name(run)}' if run else ''}"


def store_directory(
    local_dir: str | None, job_id: str, job_attempt: str, uid: str, subtask: int, run: str = ""
) -> Path:
    """Directory of one store; does not create it."""
    job = job_directory(local_dir, job_id, run)
    return job / file_name(job_attempt) / file_name(uid) / str(subtask)


def snapshot_directory(
    local_dir: str | None, job_id: str, job_attempt: str, checkpoint: int, run: str = ""
) -> Path:
    """Directory of the local snapshots of one checkpoint; does not create it."""
    # Never the directory of a job attempt's stores: its name has no dot.
    job = job_directory(local_dir, job_id, run)
    return job / f"{file_name(job_attempt)}.snapshots" / f"chk-{checkpoint}"


def file_name(name: str) -> str:
    """File name for any `name`; different names get different file names, ignoring case.

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
    """Create `directory` and missing parents, readable by this user only.

    Raises:
        ConfigurationError: The user lacks permission, or the path is invalid.
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
    """Create the directory of a job run, or change its owner to `owner` if it exists.

    Call it on every host before the first store is opened. Another call is cheap. Before a
    directory is created, those of dead runs are removed.

    Raises:
        StateError: The directory exists and belongs to another user.
    """
    job = job_directory(local_dir, job_id, owner.run)
    user = None if owner.can_be_seen else ProcessIdentity.parent()
    known = user is None or (job / _user_name(user)).exists()
    if _is_there(job) and _identity(job / _OWNER) == owner and known:
        return job
    make_private(job.parent)
    if not _is_there(job):
        sweep_dead_jobs(local_dir)
    with _lock(job.parent):
        if _is_there(job):
            _write_identity(job / _OWNER, owner)
        else:
            _make_job(job, owner)
        if user is not None:
            _write_identity(job / _user_name(user), user)
    return job


def tidy_job(
    local_dir: str | None,
    job_id: str,
    *,
    run: str,
    job_attempt: str,
    snapshots: Iterable[str] = (),
    replaced: Iterable[str] = (),
) -> None:
    """Remove local state that a new job attempt does not need.

    Args:
        local_dir: Configured directory.
        job_id: The job.
        run: The run of the job attempt; other runs are not touched.
        job_attempt: The new job attempt; stores and snapshots of earlier ones are removed.
        snapshots: Snapshots to keep, of any job attempt.
        replaced: Runs that this one replaces; all their directories are removed.
    """
    job = job_directory(local_dir, job_id, run)
    kept = {Path(snapshot) for snapshot in snapshots}
    own = file_name(job_attempt)
    for directory in job.glob("*/"):
        # Workers have their files for all attempts of a run.
        if directory.name not in (own, WORKERS) and not directory.name.startswith(f"{own}."):
            _delete_but(directory, kept)
    for other in replaced:
        delete_job(local_dir, job_id, other)


@dataclass(frozen=True, slots=True)
class KeptSnapshots:
    """Local snapshots that are still needed."""

    below: int
    """Id of the next checkpoint; snapshots from it on are kept."""
    under_way: tuple[int, ...] = ()
    """Pending checkpoints; all their snapshots are kept."""
    complete: tuple[int, ...] = ()
    """Completed checkpoints; the newest snapshot of each store is kept."""


def delete_snapshots(
    local_dir: str | None,
    job_id: str,
    *,
    run: str,
    but: KeptSnapshots,
    stores: Iterable[tuple[str, int]] = (),
) -> None:
    """Remove local snapshots of a run that are no longer needed.

    A task that Spark has given up may call this late, so snapshots of checkpoints that began
    after `but` was written are kept.

    Args:
        local_dir: Configured directory.
        job_id: The job.
        run: The run of the snapshots.
        but: Snapshots to keep.
        stores: Uid and subtask of the stores of which only the newest completed snapshot is
            kept. Each task passes its own: checking all stores in every task takes too long.
    """
    job = job_directory(local_dir, job_id, run)
    kept = {*but.under_way, *but.complete}
    for directory in job.glob("*.snapshots/chk-*"):
        number = directory.name.removeprefix("chk-")
        if number.isdecimal() and int(number) < but.below and int(number) not in kept:
            _delete_at_once(directory)
    for uid, subtask in stores:
        newest: int | None = None
        for checkpoint in sorted(but.complete, reverse=True):
            pattern = f"*.snapshots/chk-{checkpoint}/{file_name(uid)}/{subtask}-*"
            for snapshot in job.glob(pattern):
                # A store without changes has no snapshot in later checkpoints.
                newest = newest or checkpoint
                if newest != checkpoint:
                    _delete_at_once(snapshot)


def _delete_at_once(directory: Path) -> None:
    """Remove a directory atomically, by renaming it first; safe if several processes try."""
    gone = directory.with_name(f"gone-{uuid.uuid4().hex}")
    with suppress(OSError):
        directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def delete_job(local_dir: str | None, job_id: str, run: str) -> None:
    """Remove the directory of a job run with all its stores, if it exists."""
    job = job_directory(local_dir, job_id, run)
    if not job.exists():
        return
    with _lock(job.parent):
        gone = _move_away(job)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def sweep_dead_jobs(local_dir: str | None) -> list[Path]:
    """Remove the directories of runs that are certainly dead; return them.

    If the driver is visible from here, the run is dead if the driver no longer runs, or ran
    before the host restarted. If the driver is on another host or in another container, the
    run is dead here once all executors that used the directory are gone. If neither is
    visible, or another sweep is running, nothing is removed.
    """
    root = local_root(local_dir)
    if not root.is_dir():
        return []
    try:
        with _lock(root, wait=False) as locked:
            if not locked:
                return []
            swept = {job: gone for job in _dead_jobs(root) if (gone := _move_away(job))}
            # No directory is created while the lock is held, so these are leftovers.
            leftovers = [p for kind in (_NEW, _GONE) for p in root.glob(f"{kind}{os.getuid()}-*")]
    except OSError:
        # A root without write permission has no jobs of this user.
        return []
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    return sorted(swept)


def _dead_jobs(root: Path) -> Iterator[Path]:
    for job in sorted(root.glob(f"{_JOB}*")):
        owner = _identity(job / _OWNER)
        if owner is None:
            continue
        users = map(_identity, job.glob(f"{_USER}*"))
        deciding = [owner] if owner.can_be_seen else list(users)
        if deciding and all(one is not None and one.is_certainly_dead() for one in deciding):
            yield job


def _delete_but(directory: Path, kept: set[Path]) -> None:
    """Remove a directory except for the paths to keep in it."""
    if directory in kept:
        return
    if not any(path.is_relative_to(directory) for path in kept):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.glob("*"):
        _delete_but(entry, kept)


@contextmanager
def _lock(root: Path, *, wait: bool = True) -> Iterator[bool]:
    # One lock file per user: that of another user cannot be opened.
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
    # Created under another name and renamed, so that it never exists without its owner.
    aside = job.parent / f"{_NEW}{os.getuid()}-{uuid.uuid4().hex}"
    aside.mkdir(mode=0o700)
    _write_identity(aside / _OWNER, owner)
    aside.rename(job)


def _move_away(job: Path) -> Path | None:
    gone = job.parent / f"{_GONE}{os.getuid()}-{uuid.uuid4().hex}"
    try:
        job.rename(gone)
    except OSError:
        # It was removed meanwhile, or belongs to another user.
        return None
    return gone


def _is_there(job: Path) -> bool:
    if not os.path.lexists(job):
        return False
    # In a world-writable directory, another user may have created it first.
    if job.is_symlink() or not job.is_dir() or job.lstat().st_uid != os.getuid():
        raise StateError(
            f"{job}: exists and is not a directory of this user; remove it, or set "
            "`state.local-dir` to a directory that only this user can write to"
        )
    return True


def _write_identity(path: Path, identity: ProcessIdentity) -> None:
    fresh = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    fresh.write_text(json.dumps({"format": 1, **asdict(identity)}))
    fresh.rename(path)


def _identity(path: Path) -> ProcessIdentity | None:
    # Missing or of a later format: treat the owner as unknown.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(path.read_text())
        if found.pop("format") == 1:
            return ProcessIdentity(**found)
    return None


def _user_name(user: ProcessIdentity) -> str:
    return f"{_USER}{xxhash.xxh3_64_hexdigest(repr(user).encode())}.json"
