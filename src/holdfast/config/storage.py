"""Checkpoint storages, as values.

A storage names a location and limits; it opens nothing. It can be converted to options and back, so
the configuration always has the storage in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from holdfast.config import checkpoint_options as options
from holdfast.config.options import given_by, options_of, path, refused_field
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.config.options import PathLike


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorage:
    """Checkpoints in a directory that the driver and every executor can reach.

    Example:
        >>> FileSystemCheckpointStorage("s3://bucket/checkpoints").write_buffer_size
        4096
    """

    name: ClassVar[str] = "filesystem"

    checkpoint_path: PathLike
    """Directory of the checkpoints: a path, or an address that fsspec can open. Kept as text."""
    file_state_size_threshold: int = given_by(options.INLINE_THRESHOLD)
    """State up to this size, in bytes, is stored inside the metadata; at most 1 MB."""
    write_buffer_size: int = given_by(options.WRITE_BUFFER_SIZE)
    """Bytes that are buffered before a write."""

    def __post_init__(self) -> None:
        """Check the fields with the parsers of their options."""
        _check_path(self)
        _check_sizes(self)


@dataclass(frozen=True, slots=True)
class JobManagerCheckpointStorage:
    """Checkpoints in the driver's memory: for small state, and lost with the driver.

    Example:
        >>> JobManagerCheckpointStorage().max_state_size
        5242880
    """

    name: ClassVar[str] = "jobmanager"

    checkpoint_path: PathLike | None = None
    """Directory of the metadata, which contains the state; kept in memory if None."""
    max_state_size: int = given_by(options.JOBMANAGER_MAX_STATE_SIZE)
    """Largest state of a subtask, in bytes; a larger one fails the checkpoint."""

    def __post_init__(self) -> None:
        """Check the fields with the parsers of their options."""
        if self.checkpoint_path is not None:
            _check_path(self)
        _check_sizes(self)


CheckpointStorage: TypeAlias = FileSystemCheckpointStorage | JobManagerCheckpointStorage
"""Any checkpoint storage."""


def checkpoint_storage(configuration: Configuration) -> CheckpointStorage:
    """The checkpoint storage of a configuration.

    Raises:
        ConfigurationError: The storage is "filesystem", and no directory is set.
    """
    directory = configuration.get(options.CHECKPOINT_DIR)
    default = "jobmanager" if directory is None else "filesystem"
    kind = configuration.get(options.CHECKPOINT_STORAGE) or default
    if kind == JobManagerCheckpointStorage.name:
        largest = configuration.get(options.JOBMANAGER_MAX_STATE_SIZE)
        return JobManagerCheckpointStorage(directory, largest)
    if directory is None:
        raise ConfigurationError(
            f"{options.CHECKPOINT_STORAGE.key} is filesystem, which needs a directory; "
            f"set {options.CHECKPOINT_DIR.key}"
        )
    return FileSystemCheckpointStorage(
        directory,
        configuration.get(options.INLINE_THRESHOLD),
        configuration.get(options.WRITE_BUFFER_SIZE),
    )


def configure_storage(configuration: Configuration, storage: CheckpointStorage) -> None:
    """Set the options of a storage.

    Raises:
        ConfigurationError: `storage` is not a checkpoint storage.
    """
    if not isinstance(storage, FileSystemCheckpointStorage | JobManagerCheckpointStorage):
        raise ConfigurationError(
            f"{storage!r} is not a checkpoint storage; give a FileSystemCheckpointStorage or a "
            "JobManagerCheckpointStorage"
        )
    for name, option in options_of(storage).items():
        configuration.set(option, getattr(storage, name))
    configuration.set(options.CHECKPOINT_STORAGE, storage.name)
    configuration.set(options.CHECKPOINT_DIR, storage.checkpoint_path)


def _check_path(storage: CheckpointStorage) -> None:
    try:
        # The dataclass is frozen, so the text replaces a path object this way.
        object.__setattr__(storage, "checkpoint_path", path(storage.checkpoint_path))
    except ValueError as error:
        raise refused_field(storage, "checkpoint_path", str(error)) from None


def _check_sizes(storage: CheckpointStorage) -> None:
    for name, option in options_of(storage).items():
        value = getattr(storage, name)
        if not isinstance(value, int):
            raise refused_field(storage, name, "expected a number of bytes")
        try:
            option.parse(value)
        except ValueError as error:
            raise refused_field(storage, name, str(error)) from None
