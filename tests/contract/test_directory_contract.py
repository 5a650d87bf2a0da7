"""What every directory of stored files promises to checkpoints and to file sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from holdfast.connectors.files.directory import SINK_ERRORS
from holdfast.errors import CheckpointStorageError, CorruptCheckpointError, SinkError
from holdfast.storage.file_system import open_directory
from holdfast.storage.files import CHECKPOINT_ERRORS
from tests.contract.test_checkpoint_storage_contract import ArrowLocal

if TYPE_CHECKING:
    from holdfast.storage.files import Directory


@pytest.fixture(params=["local", "memory", "arrowlocal"])
def url(request, tmp_path) -> str:
    fsspec.register_implementation("arrowlocal", ArrowLocal, clobber=True)
    return f"{tmp_path}/out" if request.param == "local" else f"{request.param}://{tmp_path}/out"


@pytest.fixture
def files(url) -> Directory:
    return open_directory(url, SINK_ERRORS)


def put(files: Directory, name: str, content: bytes) -> None:
    file = files.create(name)
    file.write(content)
    files.finish(name, file, len(content))


def test_a_file_is_written_in_pieces_and_read_again(files):
    assert files.write("a/b", [b"ab", b"", b"cde"]) == 5
    assert files.read("a/b") == b"abcde"
    assert files.read("a/b", 2) == b"ab"
    assert files.size("a/b") == 5
    assert files.read("a/c") is None
    assert files.open("a/c") is None
    assert files.size("a") is None


def test_a_file_is_written_again_over_what_was_there(files):
    files.write("a/b", [b"long content"])
    assert files.write("a/b", [b"short"]) == 5
    assert files.read("a/b") == b"short"


def test_a_created_file_is_whole_when_it_is_finished(files):
    put(files, "deep/down/a", b"abc")
    assert files.entries("deep/down") == {"a": 3}
    with pytest.raises(SinkError, match="4 bytes were written, and the file has 0"):
        files.finish("deep/b", files.create("deep/b"), 4)


def test_a_moved_file_has_its_new_name_only(files):
    put(files, "staged/a", b"abc")
    files.move("staged/a", "day=1/part", 3)
    files.sync(["day=1/part"])
    assert files.read("day=1/part") == b"abc"
    assert not files.exists("staged/a")


def test_moving_what_is_gone_changes_nothing(files):
    put(files, "day=1/part", b"abc")
    files.move("staged/a", "day=1/part", 3)
    assert files.read("day=1/part") == b"abc"
    files.sync(["day=1/part", "day=2/part"])


def test_a_tree_is_deleted_whatever_its_names_look_like(files):
    for name in ("a/x[1]/b", "a/x*/c", "ab/d"):
        files.write(name, [b"x"])
    files.delete_tree("a")
    files.delete_tree("nowhere")
    assert files.entries("a") == {}
    assert files.entries("ab") == {"d": 1}


def test_a_file_is_no_directory(files):
    files.write("a", [b"x"])
    assert files.entries("a") == {}


@pytest.mark.parametrize(
    ("errors", "error", "called"),
    [
        (SINK_ERRORS, SinkError, "the sink's directory"),
        (CHECKPOINT_ERRORS, CheckpointStorageError, "the job's checkpoint directory"),
    ],
)
def test_failures_are_those_of_the_directory_s_user(
    tmp_path, errors: Any, error: Any, called: str
) -> None:
    (tmp_path / "out").write_bytes(b"")
    files = open_directory(str(tmp_path / "out"), errors)
    with pytest.raises(error, match=r"out/a/b: writing failed"):
        files.write("a/b", [b"x"])
    with pytest.raises(CorruptCheckpointError, match=f"leads out of {called}"):
        files.read("../a")
