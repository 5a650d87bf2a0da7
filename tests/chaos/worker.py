"""What Spark runs instead of its own daemon: workers of the job have the seams in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    import socket

_serve = daemon.worker


def serve(sock: socket.socket, authenticated: bool) -> int:
    """Serve tasks, in a process of its own."""
    # Not before the fork: the daemon itself stays as small as Spark's.
    from tests.chaos import seams

    seams.install()
    return _serve(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = serve
    daemon.manager()
