"""Who may control jobs: whoever can read the token.

Every request needs the token of the server, which is in a file for its user alone. Web pages cannot
read it. In case one gets to know it, requests that name a foreign host (DNS rebinding) or come
from a foreign page are refused as well.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from holdfast.control.wire import error_response
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

SHORTEST_TOKEN: Final = 16
"""Characters of the shortest token that is accepted from a file."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def obtain_token(path: str | os.PathLike[str]) -> str:
    """The token in a file, which is created with a new one if it does not exist.

    Drivers of one user may share a file. It appears with its content, or not at all.

    Raises:
        ConfigurationError: Others can read or replace the file, or it is no plain file.
    """
    file = Path(os.path.abspath(path))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_directory(file.parent)
        try:
            return _read_token(file)
        except FileNotFoundError:
            _write_token(file)
            return _read_token(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be used for the token: {error}") from error


def _check_directory(directory: Path) -> None:
    """Check that nobody else can put another file in place of the token's."""
    found = directory.stat()
    sticky = found.st_mode & stat.S_ISVTX
    if found.st_uid not in (os.getuid(), 0) or (found.st_mode & 0o022 and not sticky):
        raise ConfigurationError(
            f"{directory}: other users can replace files here, so the token would not be safe; "
            f"choose another directory, or run: chmod go-w {directory}"
        )


def _read_token(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"{file}: is no plain file that can be read ({error.strerror}), so it is not used for "
            "the token; remove it, or choose another path"
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"{file}: is no plain file, so it cannot hold the token")
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigurationError(
                f"{file}: belongs to another user, or others may read it, so its token is not "
                "safe; remove it, and a new one is written"
            )
        token = os.read(descriptor, 1024).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"{file}: holds no token of at least {SHORTEST_TOKEN} characters; remove it, and a "
            "new one is written"
        )
    return token


def _write_token(file: Path) -> None:
    """Create the file with a new token, unless another driver is faster."""
    # `mkstemp` creates a file that did not exist, with mode 0600.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with open(descriptor, "w") as opened:
            opened.write(f"{secrets.token_urlsafe(32)}\n")
        try:
            # Unlike a rename, this never replaces a file.
            os.link(temporary, file)
        except FileExistsError:
            return
    finally:
        os.unlink(temporary)


class Guard:
    """Refuses requests without the token, with a foreign host, or from a foreign page."""

    def __init__(
        self, app: ASGIApp, token: str, bound: str, port: int, names: Iterable[str] = ()
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            token: What requests must have.
            bound: The address that the server listens on.
            port: Its port.
            names: Hosts that requests may name besides, with any port.
        """
        self._app = app
        self._token = token.encode()
        self._port = port
        self._here = {*LOOPBACK, bound.lower()}
        self._names = {name.strip("[]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on, and refuse any other."""
        if scope["type"] != "http":
            # There are no web sockets here, and nothing to do at the start.
            return
        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        scheme = scope.get("scheme", "http")
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._is_known(hosts[0].decode("latin-1"), scheme):
            return error_response(
                403,
                "the host that the request names is not this driver; use its address, or add "
                "the name to rest.address",
            )
        for origin in headers.get(b"origin", []):
            if not self._is_known_origin(origin.decode("latin-1")):
                return error_response(403, "the request comes from a page of another site")
        given = headers.get(b"authorization", [])
        if len(given) != 1 or not self._has_token(given[0]):
            return error_response(
                401,
                "the token is missing or wrong; send the header 'Authorization: Bearer TOKEN', "
                "with the token from the file that the driver's log names",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

    def _has_token(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        right = hmac.compare_digest(token.strip(), self._token)
        return right and scheme.lower() == b"bearer"

    def _is_known_origin(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in DEFAULT_PORTS and self._is_known(parts.netloc, parts.scheme)

    def _is_known(self, host: str, scheme: str) -> bool:
        """Whether a host, with its port if it is not the default, is this server."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None or parts.netloc != host or "@" in host or parts.path:
            return False
        here = name in self._here and (port or DEFAULT_PORTS[scheme]) == self._port
        return here or name in self._names
