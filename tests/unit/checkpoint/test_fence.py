"""Fences: of all drivers of a job, only the last may write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.fence import still_valid, take_fence
from holdfast.errors import FencedError
from holdfast.storage.file_system import FileSystemFiles

RACER = """
import sys
from holdfast.checkpoint.files.fence import still_valid
from holdfast.checkpoint.files.fence import take_fence
from holdfast.storage.file_system import FileSystemFiles
files = FileSystemFiles(sys.argv[1])
sys.stdin.readline()
print(*(take_fence(files).number for _ in range(20)))
"""


def test_fences_are_numbered_from_one(files):
    assert [take_fence(files).number for _ in range(12)] == list(range(1, 13))


def test_the_newest_fence_holds(files):
    take_fence(files)
    take_fence(files).check()


def test_an_older_fence_says_who_took_over(files):
    old = take_fence(files)
    old.check()
    for _ in range(2):
        take_fence(files)
    with pytest.raises(FencedError, match=r'fence 1, and another has taken fence 3 \(\{"host":'):
        old.check()


def test_a_driver_whose_job_was_deleted_is_fenced_even_if_the_job_starts_anew(files):
    old = take_fence(files)
    delete_job(files)
    with pytest.raises(FencedError, match="fence 1 of this driver is gone"):
        old.check()
    new = take_fence(files)
    assert new.number == old.number
    with pytest.raises(FencedError, match="fence 1 of this driver is gone"):
        old.check()
    new.check()


def test_other_files_beside_the_fences_are_no_fences(files):
    files.create_exclusive("fence/notes.txt", b"")
    assert take_fence(files).number == 1


def test_processes_that_race_get_different_fences(tmp_path):
    command = [sys.executable, "-c", RACER, str(tmp_path / "job")]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    taken = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        output, _ = racer.communicate(timeout=60)
        numbers = list(map(int, output.split()))
        assert numbers == sorted(numbers)
        taken += numbers
    assert sorted(taken) == list(range(1, 41))


def test_a_checkpoint_completed_too_late_is_not_gone_back_to(tmp_path) -> None:
    files = FileSystemFiles(str(tmp_path))
    for _ in range(3):
        take_fence(files)
    chosen, late, earlier, own = (1, 7), (2, 8), (1, 6), (4, 9)
    assert still_valid(files, [late, chosen, earlier]) == [late, chosen, earlier]
    take_fence(files).going_back(*chosen)
    assert still_valid(files, [late, chosen, earlier]) == [chosen, earlier]
    assert still_valid(files, [own, late, chosen]) == [own, chosen]


def test_the_driver_that_went_back_last_decides(tmp_path) -> None:
    files = FileSystemFiles(str(tmp_path))
    take_fence(files).going_back(0, 3)
    take_fence(files).going_back(1, 5)
    assert still_valid(files, [(1, 5), (0, 4), (0, 3)]) == [(1, 5), (0, 4), (0, 3)]
    again = take_fence(files)
    again.going_back(1, 5)
    again.going_back(3, 9)
    assert still_valid(files, [(3, 10), (3, 9), (2, 8), (1, 5)]) == [
        (3, 10),
        (3, 9),
        (2, 8),
        (1, 5),
    ]


def test_a_job_that_goes_back_again_and_again_keeps_the_note_that_decides(files) -> None:
    for checkpoint_id in range(1, 30):
        fence = take_fence(files)
        fence.going_back(fence.number - 1, checkpoint_id)
        fence.going_back(fence.number, checkpoint_id + 1)
    notes = [name for name in files.entries("fence") if "from" in name]
    assert notes == [f"{fence.number}.from-{fence.number}-30"]


def test_a_note_that_cannot_be_deleted_decides_nothing_and_stops_nobody(
    files, monkeypatch, caplog
) -> None:
    take_fence(files).going_back(0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        take_fence(files).going_back(1, 5)
    assert "earlier notes are left in fence/: " in caplog.text
    assert "the disk is read-only" in caplog.text
    assert still_valid(files, [(1, 6), (1, 5), (0, 4)]) == [(1, 5), (0, 4)]
    take_fence(files).going_back(2, 7)
    assert [name for name in files.entries("fence") if "from" in name] == ["3.from-2-7"]


def refuse(path, missing_ok=False, unlink=Path.unlink) -> None:
    if "from" in path.name:
        raise OSError("the disk is read-only")
    unlink(path, missing_ok)


def test_a_driver_that_was_replaced_removes_no_note_of_its_successor(files) -> None:
    old, new = take_fence(files), take_fence(files)
    new.going_back(1, 5)
    old.going_back(1, 6)
    assert still_valid(files, [(2, 7), (1, 6), (1, 5)]) == [(2, 7), (1, 5)]


def test_a_driver_knows_those_that_it_has_replaced(files):
    before = [take_fence(files) for _ in range(3)]
    last = take_fence(files)
    assert last.replaced() == tuple(fence.run for fence in reversed(before))
    assert before[0].replaced() == ()
    assert len({fence.run for fence in (*before, last)}) == 4
    assert all(fence.run for fence in before)


def test_of_the_drivers_before_it_a_driver_knows_a_few(files):
    runs = [take_fence(files).run for _ in range(30)]
    assert take_fence(files).replaced() == tuple(runs[:-17:-1])


def test_a_fence_that_cannot_be_read_stands_for_no_driver(files):
    files.create_exclusive("fence/1", b"by hand")
    first = take_fence(files)
    assert take_fence(files).replaced() == (first.run,)
