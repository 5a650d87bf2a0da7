"""Keyed state of one subtask, run epoch after epoch without a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.api.descriptors import StateDescriptor


class Subtask:
    """The store of one subtask, and the state backend of its current epoch.

    Args:
        backend: The state backend.
        directory: Where the store is.
        version: The version of a store that was restored there; None for a new store.
        settings: Further arguments of `KeyedStateBackend`.
    """

    def __init__(
        self, backend: Any, directory: Path, version: str | None = None, **settings: Any
    ) -> None:
        self.backend, self.directory, self.version = backend, directory, version
        self.settings = {"max_parallelism": 128} | settings
        self.epoch = 0 if version is None else 100
        self.open()

    def open(self) -> None:
        """Begin an epoch."""
        self.epoch += 1
        self.current = CurrentKey()
        self.store: Any = self.open_store()
        self.state = KeyedStateBackend(
            self.store, epoch=self.epoch, current=self.current, **self.settings
        )

    def open_store(self) -> Any:
        return open_store(self.backend, self.directory, self.version)

    def get(self, descriptor: StateDescriptor) -> Any:
        return self.state.register(descriptor)

    def key(self, key: Any) -> None:
        self.current.key = key

    def next_epoch(self, snapshot: Path | None = None) -> Any:
        """Commit the epoch and begin the next one; returns the statistics of the commit."""
        statistics = self.commit(snapshot)
        self.open()
        return statistics

    def commit(self, snapshot: Path | None) -> Any:
        self.version = f"{self.epoch}-test"
        return self.state.commit(self.version, snapshot)

    def fail(self) -> None:
        """Abort the epoch and begin another attempt."""
        self.state.abort()
        self.open()

    def content(self) -> dict[bytes, bytes]:
        """All entries of the store."""
        return dict(self.store.scan(b""))

    def values(self) -> list[bytes]:
        """All stored values, except metadata."""
        self.state.flush()
        return [value for key, value in self.store.scan(b"") if key[:2] != b"\x00\x00"]


def put(state: Any, kind: str, value: Any = 7) -> None:
    """Write a value to a state of this kind, so that `read` returns it."""
    match kind:
        case "value":
            state.update(value)
        case "map":
            state.put("k", value)
        case _:
            state.add(value)


def read(state: Any, kind: str) -> Any:
    """The value that was put last, or None."""
    match kind:
        case "value":
            return state.value()
        case "map":
            return state.get("k")
        case "list":
            return (state.get() or [None])[-1]
        case _:
            return state.get()
