"""Files with input that was left over go when nobody needs them, and not before."""

from __future__ import annotations

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.files.channel_state import ChannelStateFiles
from holdfast.runtime.plan import ChannelRows
from holdfast.storage.handles import FileHandle
from tests.support.checkpoints import checkpoint


def rows(path: str) -> ChannelRows:
    handle = FileHandle(path=path, size=1, checksum="")
    return ChannelRows(
        uid="count",
        input=0,
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        rows=StagedRows(handle, 1, 1),
    )


def test_what_was_processed_goes_with_the_next_checkpoint() -> None:
    left = ChannelStateFiles()
    left.taken([rows("staged/a")])
    assert left.done(checkpoint(1)) == set()
    left.taken([])
    assert left.done(checkpoint(2)) == {"staged/a"}
    assert left.done(checkpoint(3)) == set()


def test_what_a_checkpoint_on_its_way_lists_stays() -> None:
    """The one before it still publishes, while a later epoch has processed its input."""
    left = ChannelStateFiles()
    left.taken([rows("staged/a")])
    left.taken([])
    assert left.done(checkpoint(1), needed=["staged/a"]) == set()
    assert left.done(checkpoint(2)) == {"staged/a"}
