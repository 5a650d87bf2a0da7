"""What goes when output was published or given up, and what must stay until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.api.sinks import OPENED
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.files.fence import Fence
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import CheckpointStorageError, FencedError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.staged import Notebook, calls, forget
from tests.support.staged_drivers import Driver, published

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata

pytestmark = pytest.mark.usefixtures("no_calls")


def test_what_is_given_up_goes_with_the_first_checkpoint_of_a_job_attempt(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    assert calls("clean_up") == []
    driver.complete(1)
    driver.complete(2)
    assert [call[-1] for call in calls("clean_up")] == ["1-1"]
    driver.recover(load(driver.files, 2))
    assert len(calls("clean_up")) == 1
    driver.complete(3)
    assert [call[-1] for call in calls("clean_up")] == ["1-1", "1-2"]


def test_a_late_checkpoint_of_an_older_job_attempt_tidies_nothing(drive: Any) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    late, pending_committables = driver.stored(1), driver.commits.pending_committables
    driver.begin(1)
    driver.epoch(2)
    driver.commits.publish(late, pending_committables, driver.storage)
    assert published() == [(1, [1])]
    assert calls("clean_up", "abort_opened") == []


def rows_of(driver: Driver, job_attempt: str) -> str:
    """Stage rows as a task of a job attempt does; the name of the file."""
    schema = driver.plan.stages[0].operators[0].input.schema
    staged = FileStaging(driver.files).put(f"{job_attempt}-1-0-1-rows", [], schema)
    return str(staged.handle.path.removeprefix(f"{STAGED}/"))


def test_staged_rows_that_nothing_needs_go_with_the_first_checkpoint(drive: Any) -> None:
    driver = drive()
    driver.begin()
    given_up, own = rows_of(driver, "1-0"), rows_of(driver, "1-1")
    driver.epoch(1)
    assert driver.staged == sorted([given_up, own])
    driver.complete(1)
    assert driver.staged == [own]
    later = rows_of(driver, "1-0")
    driver.complete(2)
    assert driver.staged == sorted([own, later])


def test_staged_rows_that_a_complete_checkpoint_lists_stay(tmp_path: Path) -> None:
    driver = Driver(tmp_path, Notebook(rows=True, stages=True))
    driver.begin()
    driver.epoch(1)
    first = driver.complete(1)
    [kept] = driver.staged
    driver.recover(first)
    driver.epoch(2)
    driver.complete(2)
    assert kept in driver.staged
    driver.storage.delete(1)
    assert len(driver.staged) == 1
    assert kept not in driver.staged


def in_doubt(driver: Driver) -> CheckpointMetadata:
    """Checkpoint 1 is complete; 2 was given up, and yet its metadata is there."""
    driver.begin()
    first = driver.complete(1)
    driver.epoch(7)
    pending_committables = driver.commits.pending_committables
    doubtful = replace(
        checkpoint(2),
        operators=[],
        job_attempt=driver.job_attempt,
        committables=pending_committables.listed(1, 2),
    )
    driver.storage.complete(doubtful)
    pending_committables.unlist(2)
    return first


def test_staged_rows_of_a_checkpoint_in_doubt_stay_until_a_newer_one_is_complete(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path, Notebook(rows=True, stages=True))
    driver.recover(in_doubt(driver))
    [doubtful] = driver.staged
    driver.epoch(7)
    assert doubtful in driver.staged
    driver.complete(3)
    assert doubtful not in driver.staged


def test_another_driver_publishes_what_a_checkpoint_in_doubt_lists(tmp_path: Path) -> None:
    sink = Notebook(rows=True, stages=True)
    driver = Driver(tmp_path, sink)
    driver.recover(in_doubt(driver))
    other = Driver(tmp_path, sink)
    other.recover(load(other.files, 2))
    [(_, _, _, checkpoint_id, rows)] = calls("commit")
    assert checkpoint_id == 2
    [read] = FileStaging(other.files).get(rows)
    assert read.column("n").to_pylist() == [7]


def test_what_cannot_be_tidied_up_does_not_fail_the_checkpoint(
    drive: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_: Any) -> None:
        raise CheckpointStorageError("storage is away")

    driver = drive()
    driver.begin()
    driver.epoch(1)
    monkeypatch.setattr(driver.storage, "delete_unlisted", unreachable)
    driver.complete(1)
    assert published() == [(1, [1])]
    assert "was not deleted: storage is away" in caplog.text


# What writers have opened


def aborted() -> list[str]:
    return [one for call in calls("abort_opened") for one in call[2]]


def opened(driver: Driver) -> list[str]:
    """JobAttempt, epoch, subtask and attempt of every note."""
    found = [name for name in driver.staged if name.startswith(OPENED)]
    return [name.removeprefix(OPENED).partition("@")[0] for name in found]


def test_what_is_published_is_no_longer_noted_as_open(drive: Any) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    metadata = driver.stored(1)
    driver.epoch(2)
    driver.publish(metadata)
    [left] = opened(driver)
    assert left.startswith("1-1-2-0-")
    assert aborted() == []


def test_what_epochs_behind_the_checkpoint_had_open_is_aborted_later(drive: Any) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    metadata = driver.complete(1)
    driver.epoch(2)
    [lost] = opened(driver)
    driver.recover(metadata)
    driver.epoch(3)
    assert aborted() == []
    driver.complete(2)
    assert aborted() == [lost]
    assert opened(driver) == []


def test_what_is_open_when_a_job_ends_for_good_is_aborted(drive: Any) -> None:
    """It is cancelled, say, and its notes go with its checkpoints."""
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    driver.complete(1)
    driver.epoch(2)
    [left] = opened(driver)
    driver.commits.abort_left_open(driver.fence.check)
    assert aborted() == [left]
    assert opened(driver) == []


def test_of_a_driver_that_was_replaced_nothing_open_is_aborted(drive: Any) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    drive(opens=True)
    driver.commits.abort_left_open(driver.fence.check)
    assert aborted() == []


class Undeletable:
    """Files whose notes are not deleted; those of one epoch, or all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str = OPENED) -> None:
        self._real, self._part = FileSystemFiles.delete, part
        monkeypatch.setattr(FileSystemFiles, "delete", lambda files, name: self(files, name))

    def __call__(self, files: FileSystemFiles, name: str) -> None:
        if OPENED in name and self._part in name:
            raise CheckpointStorageError(f"{name}: access denied")
        self._real(files, name)


def test_notes_are_gone_before_anything_is_published(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    seen: list[list[str]] = []
    committer = "tests.support.staged.NotebookCommitter.commit"
    monkeypatch.setattr(committer, lambda self, requests: seen.append(opened(driver)))
    metadata = driver.complete(1)
    forget()
    other = drive(opens=True)
    other.recover(metadata)
    assert seen == [[], []]


@pytest.mark.parametrize("undeleted", ["1-1-1-0-", "1-1-2-0-", OPENED])
def test_what_was_committed_is_never_aborted_though_its_note_is_not_deleted(
    drive: Any, undeleted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    driver.epoch(2)
    with monkeypatch.context() as patched:
        Undeletable(patched, undeleted)
        driver.complete(1)
        assert published() == [(1, [1]), (1, [2])]
        assert opened(driver) == [name for name in opened(driver) if undeleted in OPENED + name]
        driver.epoch(3)
        driver.complete(2)
        driver.recover(load(driver.files, 2))
        driver.complete(3)
    assert "were not deleted; trying again later" in caplog.text
    driver.complete(4)
    assert aborted() == []
    assert opened(driver) == []


@pytest.mark.parametrize("published_before", [False, True])
@pytest.mark.parametrize("undeleted", ["nothing", OPENED])
def test_what_was_committed_is_never_aborted_though_its_driver_died_before_it_tidied_up(
    drive: Any, published_before: bool, undeleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drive(opens=True)
    old.begin()
    old.epoch(1)
    metadata = old.stored(1)
    Undeletable(monkeypatch, undeleted)
    if published_before:
        old.publish(metadata)
    old.epoch(2)
    lost = opened(old)[-1]
    new = drive(opens=True)
    new.recover(metadata)
    new.epoch(3)
    new.complete(2)
    assert set(aborted()) == {lost}


def test_what_was_committed_is_never_aborted_though_no_checkpoint_is_left_that_listed_it(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = drive(opens=True)
    first.begin()
    first.epoch(1)
    [committed] = opened(first)
    with monkeypatch.context() as patched:
        Undeletable(patched)
        metadata = first.complete(1)
        for number in (2, 3):
            driver = drive(opens=True)
            driver.recover(metadata)
            driver.epoch(number)
            metadata = driver.complete(number)
            driver.storage.delete(number - 1)
        assert committed in opened(driver)
    last = drive(opens=True)
    last.recover(metadata)
    last.epoch(4)
    last.complete(4)
    assert aborted() == []
    assert opened(last) == []
    last.complete(5)
    assert load(last.files, 5).stale_notes is UNSET


@pytest.mark.parametrize("same_driver", [False, True])
def test_what_was_committed_is_never_aborted_though_the_job_goes_back_behind_it(
    drive: Any, same_driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(1)
    before = driver.complete(1)
    driver.epoch(2)
    with monkeypatch.context() as patched:
        Undeletable(patched)
        driver.complete(2)
        driver.epoch(3)
        lost = opened(driver)[-1]
        if not same_driver:
            driver = drive(opens=True)
        driver.recover(before)
        driver.epoch(2)
        driver.complete(3)
        driver.storage.delete(2)
        driver.complete(4)
    assert set(aborted()) == {lost}


def test_what_a_checkpoint_in_doubt_lists_is_not_aborted_while_it_may_be_found(drive: Any) -> None:
    driver = drive(opens=True)
    first = in_doubt(driver)
    [doubtful] = opened(driver)
    driver.recover(first)
    driver.complete(3)
    assert aborted() == []
    driver.storage.delete(2)
    driver.complete(4)
    assert aborted() == [doubtful]


def test_nothing_is_aborted_while_a_complete_checkpoint_cannot_be_read(
    drive: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old = drive(opens=True)
    old.begin()
    old.epoch(1)
    old.stored(1)
    (old.tmp_path / "checkpoints" / "chk-1" / "_metadata").write_bytes(b"damaged")
    driver = drive(opens=True)
    driver.begin()
    driver.epoch(2)
    driver.complete(2)
    assert aborted() == []
    assert "chk-1/_metadata" in caplog.text
    assert "no open transactions of writers are aborted" in caplog.text
    assert len(calls("clean_up")) == 1


def test_a_driver_that_is_replaced_while_it_publishes_leaves_all_of_the_next_one(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drive(opens=True)
    old.begin()
    old.epoch(1)
    metadata = old.stored(1)
    rows: list[str] = []

    def replaced(self: Any, requests: Any) -> None:
        new = drive(opens=True)
        new.begin()
        new.epoch(2)
        rows.append(rows_of(new, new.job_attempt))

    monkeypatch.setattr("tests.support.staged.NotebookCommitter.commit", replaced)
    old.publish(metadata)
    assert aborted() == []
    assert calls("clean_up") == []
    assert [name for name in old.staged if not name.startswith(OPENED)] == rows


def test_what_could_not_be_aborted_is_tried_again_with_the_next_checkpoint(drive: Any) -> None:
    old = drive(opens=True)
    old.begin()
    old.epoch(1)
    [lost] = opened(old)
    new = drive(opens=True, fails_in="abort_opened")
    new.begin()
    new.complete(1)
    new.complete(2)
    assert aborted() == [lost, lost]
    assert opened(new) == [lost]


def test_notes_of_sinks_that_the_program_lost_go(drive: Any) -> None:
    driver = drive()
    driver.begin()
    FileStaging(driver.files).note(f"{OPENED}0-1-1-0-7@gone", b"transaction")
    driver.complete(1)
    assert driver.staged == []


def test_rows_that_another_driver_stages_while_this_one_deletes_others_stay(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()
    given_up = rows_of(driver, "1-0")
    staged: list[str] = []
    check = Fence.check

    def replaced_right_after(fence: Fence) -> None:
        check(fence)
        if not staged:
            new = drive()
            staged.append(rows_of(new, f"{new.fence.number}-1"))

    with monkeypatch.context() as patched:
        patched.setattr(Fence, "check", replaced_right_after)
        driver.storage.delete_unlisted("1-1")
    assert driver.staged == staged
    assert given_up not in driver.staged


# The end


def test_a_job_that_has_ended_leaves_nothing_staged(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    driver.complete(1)
    driver.commits.close(ended=True)
    assert calls("clean_up")[-1] == (
        *("clean_up", "notebook", "job", "sink"),
        "1-1-ended",
    )


def test_a_driver_that_was_replaced_while_it_ended_lets_no_sink_clean_up(drive: Any) -> None:
    """The fence was looked at before, and somebody took the next one."""
    driver = drive()
    driver.begin()
    drive()
    with pytest.raises(FencedError):
        driver.commits.close(ended=True, check_fence=driver.fence.check)
    assert calls("clean_up") == []


def test_a_job_that_owes_output_leaves_it_staged(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    driver.stored(1)
    driver.commits.close(ended=True)
    assert calls("clean_up") == []


def test_a_job_that_another_driver_has_taken_over_leaves_all_as_it_is(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.commits.close(ended=False)
    assert calls("clean_up") == []


def test_a_job_that_never_began_leaves_all_as_it_is(drive: Any) -> None:
    drive().commits.close(ended=True)
    assert calls("clean_up") == []
