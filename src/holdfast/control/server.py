"""The control server: HTTP in a thread of the driver."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from typing import TYPE_CHECKING, Final

import uvicorn

from holdfast.config.rest_options import REST_ADDRESS, REST_BIND_PORT, REST_CERTIFICATE
from holdfast.control.application import application
from holdfast.control.jobs import Jobs
from holdfast.control.operations import Operations
from holdfast.control.security import Guard
from holdfast.errors import ConfigurationError
from holdfast.job.threads import start_thread

if TYPE_CHECKING:
    from holdfast.config.rest import RestSettings
    from holdfast.control.jobs import ControlledJob

logger = logging.getLogger("holdfast")

START_TIMEOUT: Final = 30.0
"""Seconds within which the server must have started."""
STOP_TIMEOUT: Final = 5.0
"""Seconds after which requests that are not answered are given up at the end."""
MOST_CONNECTIONS: Final = 200
"""Connections at a time; requests on further ones are refused."""
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of the machine, and how to reach them from the machine itself."""


class ControlServer:
    """Offers the jobs of this process over HTTP.

    Args:
        settings: Where it listens.
        token: What every request must have.
        jobs: The jobs; none yet by default.
        operations: The operations; none yet by default.
    """

    def __init__(
        self,
        settings: RestSettings,
        token: str,
        *,
        jobs: Jobs | None = None,
        operations: Operations | None = None,
    ) -> None:
        self._settings = settings
        self._token = token
        self.jobs = jobs or Jobs()
        self.operations = operations or Operations()
        self._uvicorn: _Server | None = None
        self._thread: threading.Thread | None = None
        self._bound = ("", 0)

    def start(self) -> None:
        """Bind, and answer requests from now on.

        Raises:
            ConfigurationError: It cannot listen there, or its certificate cannot be used.
        """
        settings = self._settings
        bound = _bind(settings)
        try:
            self._bound = address, port = bound.getsockname()[:2]
            app = application(self.jobs, self.operations)
            guard = Guard(app, self._token, address, port, settings.addresses or ())
            self._uvicorn = _Server(_uvicorn_config(guard, settings))
        except BaseException:
            bound.close()
            raise
        self._warn_if_open(address)
        serve = self._uvicorn
        self._thread = start_thread("control server", lambda: serve.run(sockets=[bound]))
        if not serve.ready.wait(START_TIMEOUT):
            self.stop()
            raise ConfigurationError(
                f"the control server has not started within {START_TIMEOUT:.0f} s at {self.url}"
            )

    @property
    def url(self) -> str:
        """Where it is reached."""
        address, port = self._bound
        if address in WILDCARDS:
            address = next(iter(self._settings.addresses or ()), WILDCARDS[address])
        host = f"[{address.strip('[]')}]" if ":" in address else address
        return f"{'http' if self._settings.certificate is None else 'https'}://{host}:{port}"

    def add(self, job: ControlledJob) -> None:
        """Offer a started job."""
        self.jobs.add(job)

    def stop(self) -> None:
        """Answer no more requests; jobs and operations go on."""
        if self._uvicorn is not None and self._thread is not None:
            self._uvicorn.should_exit = True
            self._thread.join(2 * STOP_TIMEOUT)

    def _warn_if_open(self, address: str) -> None:
        if not ipaddress.ip_address(address).is_loopback and self._settings.certificate is None:
            logger.warning(
                "the control server listens at %s without encryption: whoever can read the network "
                "can read the token, and control the jobs. Set %s, or listen at 127.0.0.1 behind "
                "a proxy or a tunnel",
                self.url,
                REST_CERTIFICATE.key,
            )
        if address in WILDCARDS and not self._settings.addresses:
            logger.warning(
                "the control server listens on all addresses, and accepts requests to localhost "
                "alone; set %s to the names or addresses that clients use",
                REST_ADDRESS.key,
            )


class _Server(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _uvicorn_config(app: Guard, settings: RestSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=int(STOP_TIMEOUT),
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    # Each start and end, and each request that is no HTTP, are of no interest here.
    for name in ("uvicorn", "uvicorn.error"):
        theirs = logging.getLogger(name)
        if theirs.level == logging.NOTSET:
            theirs.setLevel(logging.ERROR)
    try:
        config.load()
    except OSError as error:
        files = ", ".join(filter(None, (settings.certificate, settings.key)))
        raise ConfigurationError(
            f"{REST_CERTIFICATE.key}: the certificate cannot be used ({error}): {files}"
        ) from error
    return config


def _bind(settings: RestSettings) -> socket.socket:
    """A socket at the first free port."""
    host = settings.bind_address.strip("[]")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"rest.bind-address: {host!r} is no address ({error})") from error
    family, _, _, _, address = found[0]
    problem: OSError | None = None
    for port in settings.ports:
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((address[0], port))
            # Two that are bound to one port are only told apart here.
            bound.listen()
            return bound
        except OSError as error:
            bound.close()
            problem = error
    raise ConfigurationError(
        f"the control server cannot listen at {host}, port {settings.bind_port} ({problem}); "
        f"set {REST_BIND_PORT.key} to a free port, a range, or 0 for any free port"
    )
