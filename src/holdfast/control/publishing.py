"""Offers the jobs of this process: one control server for all, started when it is first needed."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config.rest import RestSettings, rest_settings

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.control.jobs import ControlledJob
    from holdfast.control.server import ControlServer

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Published:
    """The control server of this process."""

    server: ControlServer
    settings: RestSettings
    token_file: str
    own_directory: str | None
    """The directory that was made for the token."""
    process: int


_lock = threading.Lock()
_published: Published | None = None


def prepare(configuration: Configuration) -> Published | None:
    """Start the control server if it is enabled and does not run; None if it is not enabled.

    Before a job starts, so that a job whose control server cannot listen is refused.

    Raises:
        ConfigurationError: It cannot listen there, or its token or certificate cannot be used.
    """
    global _published
    settings = rest_settings(configuration)
    if settings is None:
        return None
    with _lock:
        found = published()
        if found is None:
            found = _published = _start(settings)
        elif found.settings != settings:
            logger.warning(
                "the control server of this process runs already, at %s; other settings of it "
                "have no effect",
                found.server.url,
            )
        return found


def publish(job: ControlledJob, configuration: Configuration) -> Published | None:
    """Offer a started job over HTTP, if that is enabled."""
    found = prepare(configuration)
    if found is not None:
        found.server.add(job)
    return found


def published() -> Published | None:
    """The control server of this process, if it runs."""
    found = _published
    return None if found is None or found.process != os.getpid() else found


def withdraw() -> None:
    """Stop the control server of this process, if it runs."""
    global _published
    with _lock:
        found, _published = published(), None
    if found is not None:
        found.server.stop()
        if found.own_directory is not None:
            shutil.rmtree(found.own_directory, ignore_errors=True)


def _start(settings: RestSettings) -> Published:
    # Loaded when it is needed: most drivers do without HTTP.
    from holdfast.control.security import obtain_token
    from holdfast.control.server import ControlServer

    own = None
    if settings.token_file is None:
        own = tempfile.mkdtemp(prefix="holdfast-control-")
    token_file = settings.token_file or str(Path(own or "") / "token")
    try:
        server = ControlServer(settings, obtain_token(token_file))
        server.start()
    except BaseException:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        raise
    logger.info("jobs are controlled at %s; the token is in %s", server.url, token_file)
    atexit.register(_end)
    return Published(server, settings, token_file, own, os.getpid())


def _end() -> None:
    """Let clients hear how their requests ended before the process does."""
    found = published()
    if found is not None:
        found.server.operations.linger()
        withdraw()
