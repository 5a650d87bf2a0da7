"""Which files several checkpoints share, and when the last of these is gone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.checkpoint.storage import first_user
from holdfast.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable


class SharedFiles:
    """Shared files by the checkpoints that use them; does no input or output.

    Register a checkpoint with the files it builds upon before its upload begins, and
    settle it with those it uses when it completes: then completing another one in between
    cannot take the ground from under it. What is kept follows the checkpoints that are
    there: nothing is known of files that have gone.

    Example:
        >>> shared = SharedFiles()
        >>> shared.adopt(1, ["shared/1-a", "shared/1-b"])
        >>> shared.register(2, ["shared/1-b"])
        >>> shared.settle(2, ["shared/1-b", "shared/2-c"])
        set()
        >>> sorted(shared.unregister(1))
        ['shared/1-a']
    """

    def __init__(self) -> None:
        self._files: dict[int, set[str]] = {}
        """By checkpoint."""
        self._users: Counter[str] = Counter()
        """How many checkpoints use a file; none that nobody uses."""

    def adopt(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Note that a complete checkpoint, which was found in storage, uses `paths`."""
        known = self._files.setdefault(checkpoint_id, set())
        added = set(paths) - known
        known |= added
        self._users.update(added)

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Note that a checkpoint uses `paths`, besides those it was registered with.

        Raises:
            CheckpointError: One of them is neither in use nor the checkpoint's own, so it may
                have been given up for deletion; nothing is registered.
        """
        paths = set(paths)
        gone = sorted(
            path for path in paths if path not in self._users and first_user(path) != checkpoint_id
        )
        if gone:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} uses {gone[0]}, which no checkpoint used any more "
                "and which was given up for deletion; abort it, and take the next one in full"
            )
        self.adopt(checkpoint_id, paths)

    def settle(self, checkpoint_id: int, paths: Iterable[str]) -> set[str]:
        """Note that a complete checkpoint uses `paths` and nothing else.

        Returns:
            Files that it was registered with and that no other one uses, to be deleted.

        Raises:
            CheckpointError: See `register`.
        """
        paths = set(paths)
        self.register(checkpoint_id, paths)
        return self._give_up(checkpoint_id, self._files[checkpoint_id] - paths)

    def unregister(self, checkpoint_id: int) -> set[str]:
        """Forget a checkpoint; the files that no other one uses, to be deleted.

        A checkpoint that is not registered uses nothing.
        """
        unused = self._give_up(checkpoint_id, set(self._files.get(checkpoint_id, ())))
        self._files.pop(checkpoint_id, None)
        return unused

    def _give_up(self, checkpoint_id: int, paths: set[str]) -> set[str]:
        if paths:
            self._files[checkpoint_id] -= paths
        self._users.subtract(paths)
        unused = {path for path in paths if not self._users[path]}
        for path in unused:
            del self._users[path]
        return unused

    @property
    def in_use(self) -> set[str]:
        """Every file that some registered checkpoint uses."""
        return set(self._users)
