"""Which files several checkpoints share, and when the last of these is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable


class SharedFiles:
    """Shared files by the checkpoints that use them; does no input or output.

    Register a checkpoint with the files it builds upon before its upload begins, and
    with those it added when it completes: then completing another one in between
    cannot take the ground from under it.

    Example:
        >>> shared = SharedFiles()
        >>> shared.register(1, ["shared/1-a", "shared/1-b"])
        >>> shared.register(2, ["shared/1-b", "shared/2-c"])
        >>> sorted(shared.unregister(1))
        ['shared/1-a']
    """

    def __init__(self) -> None:
        self._users: dict[str, set[int]] = {}
        self._discarded: set[str] = set()

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Note that a checkpoint uses `paths`, besides those it was registered with.

        Raises:
            CheckpointError: One of them was discarded before; nothing is registered.
        """
        paths = list(paths)
        gone = sorted(self._discarded.intersection(paths))
        if gone:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} uses {gone[0]}, which no checkpoint used any more "
                "and which was given up for deletion; abort it, and take the next one in full"
            )
        for path in paths:
            self._users.setdefault(path, set()).add(checkpoint_id)

    def settle(self, checkpoint_id: int, paths: Iterable[str]) -> set[str]:
        """Note that a complete checkpoint uses `paths` and nothing else.

        Returns:
            Files that it was registered with and that no other one uses, to be deleted.

        Raises:
            CheckpointError: See `register`.
        """
        paths = set(paths)
        self.register(checkpoint_id, paths)
        return self._give_up(checkpoint_id, but=paths)

    def unregister(self, checkpoint_id: int) -> set[str]:
        """Forget a checkpoint; the files that no other one uses, to be deleted.

        A checkpoint that is not registered uses nothing.
        """
        return self._give_up(checkpoint_id, but=set())

    def _give_up(self, checkpoint_id: int, but: set[str]) -> set[str]:
        unused = set()
        for path, users in self._users.items():
            if path in but:
                continue
            users.discard(checkpoint_id)
            if not users:
                unused.add(path)
        for path in unused:
            del self._users[path]
        self._discarded |= unused
        return unused

    @property
    def in_use(self) -> set[str]:
        """Every file that some registered checkpoint uses."""
        return set(self._users)
