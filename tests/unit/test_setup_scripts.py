"""The set-up scripts on machines that lack something."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("bash", "cat", "cut", "dirname", "env", "head", "readlink", "sed", "sort")
HERE = {"HOLDFAST_VENV": sys.prefix}
"""The virtual environment that runs the tests."""


class Machine:
    """A PATH of our own making, and an empty directory of installed Javas."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.jvm = directory / "jvm"
        self.log = directory / "apt.log"
        self.bin.mkdir()
        self.jvm.mkdir()
        for command in COMMANDS:
            found = shutil.which(command)
            assert found is not None
            (self.bin / command).symlink_to(found)
        self.command("id", "echo 0")
        self.command("apt-get", f'echo "$*" >> {self.log}; exit 100')

    def command(self, name: str, body: str) -> None:
        """Add a command to the PATH."""
        write_script(self.bin / name, body)

    def java(self, version: str, home: Path | None = None) -> Path:
        """Install a Java of this version; its home directory."""
        home = home or self.jvm / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        write_script(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
        return home

    def run(self, script: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run one of the scripts with nothing in the environment but this machine."""
        environment = {"PATH": str(self.bin), "HOLDFAST_JVM_DIR": str(self.jvm), **extra}
        return subprocess.run(
            [str(self.bin / "bash"), str(ROOT / "scripts" / script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def apt_calls(self) -> str:
        """What apt-get was asked for, a line per call."""
        return self.log.read_text() if self.log.exists() else ""


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_java_home_is_taken_when_it_is_new_enough(machine: Machine, tmp_path: Path):
    home = machine.java("17.0.15", tmp_path / "mine")
    machine.java("21.0.2")
    result = machine.run("java.sh", JAVA_HOME=str(home))
    assert (result.returncode, result.stdout) == (0, f"{home}\n")


def test_an_old_java_home_gives_way_to_the_java_on_the_path(machine: Machine, tmp_path: Path):
    old = machine.java("1.8.0_402", tmp_path / "old")
    new = machine.java("21.0.2", tmp_path / "new")
    (machine.bin / "java").symlink_to(new / "bin" / "java")
    result = machine.run("java.sh", JAVA_HOME=str(old))
    assert result.stdout == f"{new}\n"


def test_the_oldest_usable_installed_java_is_preferred(machine: Machine):
    for version in ("25", "11.0.22", "17.0.15", "21.0.2"):
        machine.java(version)
    assert machine.run("java.sh").stdout == f"{machine.jvm / 'java-17.0.15'}\n"


def test_a_java_home_that_does_not_exist_is_passed_over(machine: Machine):
    home = machine.java("17.0.15")
    assert machine.run("java.sh", JAVA_HOME="/nowhere").stdout == f"{home}\n"


def test_a_missing_java_is_installed_and_used(machine: Machine, tmp_path: Path):
    home = machine.jvm / "java-17-openjdk-amd64"
    ready = machine.java("17.0.15", tmp_path / "package")
    machine.command(
        "apt-get",
        f'case "$*" in *openjdk-17-jre-headless*) /bin/cp -r {ready} {home} ;; *) exit 100 ;; esac',
    )
    result = machine.run("java.sh")
    assert (result.returncode, result.stdout) == (0, f"{home}\n")


def test_java_21_is_installed_where_17_is_not_to_be_had(machine: Machine, tmp_path: Path):
    home = machine.jvm / "java-21-openjdk-amd64"
    ready = machine.java("21.0.2", tmp_path / "package")
    machine.command(
        "apt-get",
        f'case "$*" in *openjdk-21-jre-headless*) /bin/cp -r {ready} {home} ;; *) exit 100 ;; esac',
    )
    assert machine.run("java.sh").stdout == f"{home}\n"


def test_without_java_and_without_a_way_to_install_it_one_line_says_what_to_run(
    machine: Machine,
):
    result = machine.run("java.sh")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "sudo apt-get install openjdk-17-jre-headless" in result.stderr.splitlines()[-1]
    assert "openjdk-17-jre-headless" in machine.apt_calls()


def test_a_user_who_may_not_install_is_told_what_to_run(machine: Machine):
    machine.command("id", "echo 1000")
    machine.command("sudo", "exit 1")
    result = machine.run("java.sh")
    assert result.returncode == 1
    assert "sudo apt-get install" in result.stderr
    assert machine.apt_calls() == ""


def test_a_user_with_sudo_installs_through_it(machine: Machine):
    machine.command("id", "echo 1000")
    machine.command("sudo", 'shift; [ "$1" = true ] || exec "$@"')
    machine.command("true", "exit 0")
    machine.run("java.sh")
    assert "openjdk-17-jre-headless" in machine.apt_calls()


def test_without_python_one_line_says_what_to_run(machine: Machine, tmp_path: Path):
    result = machine.run("venv.sh", str(tmp_path / "venv"))
    assert result.returncode == 1
    assert "sudo apt-get install python3 python3-venv" in result.stderr.splitlines()[-1]


def test_an_old_python_is_not_used(machine: Machine, tmp_path: Path):
    machine.command("python3", "exit 1")
    result = machine.run("venv.sh", str(tmp_path / "venv"))
    assert result.returncode == 1
    assert "needs Python 3.11 or newer" in result.stderr


def test_a_python_without_venv_asks_for_the_package(machine: Machine, tmp_path: Path):
    machine.command("python3", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    result = machine.run("venv.sh", str(tmp_path / "venv"))
    assert result.returncode == 1
    assert "sudo apt-get install python3-venv" in result.stderr.splitlines()[-1]
    assert "python3-venv" in machine.apt_calls()


def test_a_spark_home_of_another_version_is_ignored(machine: Machine, tmp_path: Path):
    machine.java("17.0.15")
    version = tmp_path / "spark" / "python" / "pyspark" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text('__version__: str = "3.5.1"\n')
    result = machine.run("with-spark.sh", "env", SPARK_HOME=str(tmp_path / "spark"), **HERE)
    assert "SPARK_HOME=" not in result.stdout
    assert "it holds Spark 3.5.1, Holdfast runs on 4." in result.stderr


def test_a_spark_home_of_the_same_version_is_kept(machine: Machine):
    machine.java("17.0.15")
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = str(Path(spec.origin).parent)
    result = machine.run("with-spark.sh", "env", SPARK_HOME=home, **HERE)
    assert f"SPARK_HOME={home}" in result.stdout.splitlines()


def test_a_command_gets_java_and_the_python_of_the_virtual_environment(machine: Machine):
    home = machine.java("17.0.15")
    lines = machine.run("with-spark.sh", "env").stdout.splitlines()
    assert f"JAVA_HOME={home}" in lines
    assert f"PYSPARK_PYTHON={ROOT / '.venv' / 'bin' / 'python'}" in lines
    lines = machine.run("with-spark.sh", "env", **HERE).stdout.splitlines()
    assert f"PYSPARK_PYTHON={sys.prefix}/bin/python" in lines


def test_the_exit_status_of_the_command_is_passed_on(machine: Machine):
    machine.java("17.0.15")
    machine.command("fails", "exit 7")
    assert machine.run("with-spark.sh", "fails").returncode == 7


def test_without_java_the_command_is_not_run(machine: Machine):
    result = machine.run("with-spark.sh", "env")
    assert result.returncode == 1
    assert result.stdout == ""


def test_a_python_that_cannot_be_had_is_skipped_and_named(machine: Machine):
    result = machine.run("test_versions.sh", "3.12-4.2")
    assert [line.split()[:3] for line in result.stdout.splitlines()[-2:]] == [
        ["Python", "PySpark", "without"],
        ["3.12", "4.2", "skipped"],
    ]
    assert "there is no Python 3.12" in result.stdout
    assert "python3.12-venv" in machine.apt_calls()
    # The command must not look like a success if it has tested nothing.
    assert (result.returncode, result.stderr) == (1, "Nothing was tested.\n")


def test_versions_that_are_no_pair_are_refused_before_anything_runs(machine: Machine):
    result = machine.run("test_versions.sh", "3.12-4.2", "4.3")
    assert (result.returncode, result.stdout) == (2, "")
    assert "4.3 is not a pair of versions" in result.stderr
