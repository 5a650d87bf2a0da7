"""Where the local stores of a job lie, who owns them, and how they go away.

    <root>/holdfast-<job id>.<run>/                 all of one run of a job, here
      owner.json                                    the driver
      used-by-<hash>.json                           an executor, if the driver is elsewhere
      <job attempt>/<operator>/<subtask>/           one store
      <job attempt>.snapshots/chk-<id>/<operator>/<subtask>-<attempt>/
                                                    copy of a store for a checkpoint
    <root>/.holdfast-<user id>.lock                 held while a job comes or goes
    <root>/.holdfast-new-<user id>-<random>/        on its way in
    <root>/.holdfast-gone-<user id>-<random>/       on its way out

A run is one start of a job on one driver. Two drivers of one job, of which one has taken
over and the other has not noticed yet, share nothing here; so whatever one of them removes
is its own. Local state is of no use to another run: that restores from storage.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from holdfast.errors import ConfigurationError, HoldfastError, StateError, StoreFullError
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
"""What an error means. Those of the machine pass, and a restart may succeed; others do not."""


def local_root(local_dir: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Directory that holds all jobs: as set, else Spark's own, else the system's.

    Spark tells its Python workers the executor's directories, and a cluster manager
    tells its containers theirs; of several, the first is taken.
    """
    listed = environ.get("SPARK_LOCAL_DIRS") or environ.get("LOCAL_DIRS") or ""
    candidates = [local_dir or "", *listed.split(","), tempfile.gettempdir()]
    return Path(next(path.strip() for path in candidates if path.strip())).absolute()


def job_directory(local_dir: str | None, job_id: str, run: str = "") -> Path:
    """Directory of all local stores of one run of a job; nothing is created."""
    # A file name has no dot, so no job's name ends where another's run begins.
    return local_root(local_dir) / f"{_JOB}{file_name(job_id)}{f'.{file_name(run)}' if run else ''}"


def store_directory(
    local_dir: str | None, job_id: str, job_attempt: str, uid: str, subtask: int, run: str = ""
) -> Path:
    """Directory of one store; nothing is created."""
    job = job_directory(local_dir, job_id, run)
    return job / file_name(job_attempt) / file_name(uid) / str(subtask)


def snapshot_directory(
    local_dir: str | None, job_id: str, job_attempt: str, checkpoint: int, run: str = ""
) -> Path:
    """Directory of all local snapshots for one checkpoint; nothing is created."""
    # No store can be there: a job attempt's own directory has no dot in its name.
    job = job_directory(local_dir, job_id, run)
    return job / f"{file_name(job_attempt)}.snapshots" / f"chk-{checkpoint}"


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
    """Make the directory of a run of a job, owned by `owner`, or take over the one there is.

    Claim it on every host before the first store is opened there. Claiming again is
    cheap, and names the new owner. Before a new one is made, what dead ones left is removed.

    Raises:
        StateError: The directory exists and belongs to another user.
    """
    job = job_directory(local_dir, job_id, owner.run)
    user = None if owner.can_be_seen else ProcessIdentity.parent()
    if _is_there(job) and _owner_of(job) == owner and _is_known(user, job):
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
    """Remove what is of no use to a job attempt that begins.

    Args:
        local_dir: As set.
        job_id: The job.
        run: The run that it belongs to; other runs are left alone.
        job_attempt: The one that begins: the stores and snapshots of earlier ones go.
        snapshots: Snapshots that stay, whichever job attempt made them.
        replaced: Runs that this one has taken the job over from: all of theirs goes.
    """
    job = job_directory(local_dir, job_id, run)
    kept = {Path(snapshot) for snapshot in snapshots}
    own = file_name(job_attempt)
    for directory in job.glob("*/"):
        if directory.name != own and not directory.name.startswith(f"{own}."):
            _delete_but(directory, kept)
    for other in replaced:
        delete_job(local_dir, job_id, other)


@dataclass(frozen=True, slots=True)
class KeptSnapshots:
    """Local snapshots that are still wanted; of later checkpoints it says nothing."""

    below: int
    """Id of the first checkpoint that had not begun when this was written."""
    under_way: tuple[int, ...] = ()
    """Checkpoints that have not ended: all of theirs."""
    complete: tuple[int, ...] = ()
    """Checkpoints that are complete: of each store, the newest one among them."""


def delete_snapshots(
    local_dir: str | None,
    job_id: str,
    *,
    run: str,
    but: KeptSnapshots,
    stores: Iterable[tuple[str, int]] = (),
) -> None:
    """Remove the local snapshots of a run that are no longer wanted.

    A task that Spark has given up may do so late. Those of checkpoints that began after its
    list was written stay.

    Args:
        local_dir: As set.
        job_id: The job.
        run: The run that they belong to.
        but: Those that stay.
        stores: Uid and subtask of the stores of whose backups only the newest stays. Each task
            names its own: to look at all of them in every task would take too long.
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
                # A store that has not changed since has none in the checkpoints after.
                newest = newest or checkpoint
                if newest != checkpoint:
                    _delete_at_once(snapshot)


def _delete_at_once(directory: Path) -> None:
    """Remove a directory so that nobody sees a part of it; of several who try, one does."""
    gone = directory.with_name(f"gone-{uuid.uuid4().hex}")
    with suppress(OSError):
        directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def delete_job(local_dir: str | None, job_id: str, run: str) -> None:
    """Remove the directory of a run of a job with all its stores, if it is there."""
    job = job_directory(local_dir, job_id, run)
    if not job.exists():
        return
    with _lock(job.parent):
        gone = _move_away(job)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def sweep_dead_jobs(local_dir: str | None) -> list[Path]:
    """Remove the directories of runs that are certainly dead; return them.

    Certain is what can be seen from here. If the driver can be seen, it decides: it no
    longer runs, or ran before the host restarted. If it cannot, since it runs on another host
    or in another container, the executors decide that used the directory here: when all of
    them are gone, so is the state of their subtasks, whatever becomes of the job. Where those
    cannot be seen either, nothing is removed; neither while another sweep is at work.
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
        if owner is None:
            continue
        deciding = [owner] if owner.can_be_seen else _users_of(job)
        if deciding and all(one is not None and one.is_certainly_dead() for one in deciding):
            yield job


def _delete_but(directory: Path, kept: set[Path]) -> None:
    """Remove a directory, but for what is kept within it."""
    if directory in kept:
        return
    if not any(path.is_relative_to(directory) for path in kept):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.glob("*"):
        _delete_but(entry, kept)


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
    _write_identity(aside / _OWNER, owner)
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


def _write_identity(path: Path, identity: ProcessIdentity) -> None:
    fresh = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    fresh.write_text(json.dumps({"format": 1, **asdict(identity)}))
    fresh.rename(path)


def _owner_of(job: Path) -> ProcessIdentity | None:
    return _identity(job / _OWNER)


def _identity(path: Path) -> ProcessIdentity | None:
    # Not found, half written by no one, or of a later format: in doubt, it is somebody
    # whom nobody here knows.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(path.read_text())
        if found.pop("format") == 1:
            return ProcessIdentity(**found)
    return None


def _users_of(job: Path) -> list[ProcessIdentity | None]:
    return [_identity(path) for path in job.glob(f"{_USER}*")]


def _user_name(user: ProcessIdentity) -> str:
    return f"{_USER}{xxhash.xxh3_64_hexdigest(repr(user).encode())}.json"


def _is_known(user: ProcessIdentity | None, job: Path) -> bool:
    return user is None or (job / _user_name(user)).exists()
