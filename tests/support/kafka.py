"""A real Kafka broker for tests: one node, its own controller too, on loopback.

Its jars come by name through Ivy, which is a part of Spark, and stay in Ivy's cache: the
first run needs the network, later ones do not.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKER = ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-simple:1.7.36")
SOURCE = (
    # Neither was to be had in the version of Spark itself; these work with it.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""What Spark reads and writes Kafka with, apart from what Spark has itself."""
CLUSTER_ID = "aG9sZGZhc3QtYnJva2VyIQ"
"""Sixteen bytes, as Kafka writes them."""

_IVY = """<ivy-module version="2.0">
<info organisation="holdfast" module="tests"/>
<configurations><conf name="default"/></configurations>
<dependencies>{}</dependencies>
</ivy-module>"""
_START_SECONDS = 60
_RESOLVE_SECONDS = 240
_QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m")


class KafkaBroker:
    """One broker on data of its own, all of it under one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port, controller = _free_ports(2)
        self._classpath = os.pathsep.join(_jars(BROKER, directory))
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(directory / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
        }
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        self._settings.write_text("".join(lines), encoding="utf-8")

    @property
    def source_jars(self) -> list[str]:
        """The jars with which Spark reads and writes Kafka."""
        return _jars(SOURCE, self._directory, transitive=False)

    @property
    def address(self) -> str:
        """For `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def create(self) -> None:
        """Make the data directory."""
        command = self._command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c")
        made = subprocess.run(
            [*command, str(self._settings)], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr

    def start(self) -> None:
        """Start the broker, and wait until it accepts connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("kafka.Kafka"), str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"no broker: {self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the broker, with whoever is connected; its data are not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_SECONDS)
            self._process = None

    @property
    def _settings(self) -> Path:
        return self._directory / "server.properties"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [_java(), *_QUICK_JAVA, logging, "-cp", self._classpath, main, *arguments]

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False


@contextmanager
def kafka_broker() -> Iterator[KafkaBroker]:
    """A broker that runs, and leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="holdfast-kafka-") as directory:
        broker = KafkaBroker(Path(directory))
        broker.create()
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


def _jars(packages: tuple[str, ...], directory: Path, *, transitive: bool = True) -> list[str]:
    """The jars of packages, and of all that they need in turn."""
    [ivy] = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    wanted, found = directory / "ivy.xml", directory / "classpath"
    wanted.write_text(_IVY.format("".join(_dependency(p, transitive) for p in packages)))
    run = subprocess.run(
        [_java(), *_QUICK_JAVA, "-jar", ivy, "-ivy", wanted, "-cachepath", found],
        capture_output=True,
        text=True,
        timeout=_RESOLVE_SECONDS,
        check=False,
        cwd=directory,
    )
    assert run.returncode == 0, (
        f"{packages} are neither in Ivy's cache nor to be had: {run.stdout[-2000:]}{run.stderr}"
    )
    return found.read_text(encoding="utf-8").strip().split(os.pathsep)


def _dependency(package: str, transitive: bool) -> str:
    group, name, version = package.split(":")
    further = f'conf="default" transitive="{str(transitive).lower()}"'
    return f'<dependency org="{group}" name="{name}" rev="{version}" {further}/>'


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
