"""All errors of Holdfast, as one tree.

Messages say what happened, where, and what to do. Errors cross process boundaries (Python worker to
driver), so all of them can be pickled: the constructor's arguments are exactly ``args``.

    HoldfastError
    ├── ConfigurationError          a setting, an option or an argument is wrong
    │   ├── UnknownOptionError      a configuration key that does not exist
    │   └── UnsupportedSparkError   the Spark session or a setting of it cannot be used
    ├── RegistryError               a job is not listed, or the list cannot be read or written
    ├── JobGraphError               the program itself is wrong; nothing ran
    │   ├── DuplicateUidError       one uid given to two operators
    │   ├── TypeDeclarationError    a type that has no columnar form, or is not declared
    │   └── NotSerializableError    a function that cannot be shipped to a worker
    ├── StateError                  state was used wrongly, or its store is invalid
    │   ├── StateAccessError        no key set, or keyed state on a stream that is not keyed
    │   ├── StateDescriptorError    a descriptor clashes with another, or is malformed
    │   │   └── StateMigrationError  stored state cannot be read as the declared type
    │   ├── StateValueError         a value that state cannot hold
    │   ├── NullKeyError            a key is null
    │   ├── KeyTypeError            a key whose type cannot be a key, or differs from the others
    │   └── StoreError              a local store cannot be used; not an error of user code
    │       ├── StoreVersionError   it has another version than expected
    │       ├── StoreFullError      the disk, or its address space, is exhausted
    │       └── CorruptStoreError   it is damaged
    ├── CheckpointError             a checkpoint could not be taken, stored or used
    │   ├── CheckpointStorageError  checkpoint storage refused, failed or is full
    │   ├── CorruptCheckpointError  a checkpoint is damaged, truncated, foreign or too new
    │   ├── FencedError             another driver has taken over the job
    │   └── RestoreError            there is no checkpoint to restore, or it does not fit
    ├── SinkError                   a sink could not write or publish
    ├── UserFunctionError           user code raised; carries operator, subtask, key and row
    ├── EventTimeError              a row's event time is missing or invalid
    ├── OutputTypeError             an output does not fit the declared type
    ├── JobExecutionError           the job failed; the cause is attached
    └── ControlError                a request to the control server of a driver has failed
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base class of all errors of Holdfast."""


class ConfigurationError(HoldfastError, ValueError):
    """A setting, an option or an argument is wrong."""


class UnknownOptionError(ConfigurationError):
    """A configuration key that does not exist."""


class UnsupportedSparkError(ConfigurationError):
    """The Spark session, or one of its settings, cannot be used."""


class RegistryError(HoldfastError):
    """A job is not in the registry, or the registry cannot be read or written."""


class JobGraphError(HoldfastError):
    """The program is wrong; nothing has run."""


class DuplicateUidError(JobGraphError):
    """One uid was given to two operators."""


class TypeDeclarationError(JobGraphError, TypeError):
    """A type has no columnar form, or a required type is not declared."""


class NotSerializableError(JobGraphError):
    """A function cannot be shipped to a worker."""


class StateError(HoldfastError):
    """State was used wrongly, or its store is invalid."""


class StateAccessError(StateError):
    """No key is set, or keyed state was used outside a keyed stream."""


class StateDescriptorError(StateError):
    """A descriptor is malformed, or clashes with one already registered."""


class StateMigrationError(StateDescriptorError):
    """Stored state cannot be read as the declared type."""


class StateValueError(StateError, ValueError):
    """A value that a state cannot hold."""


class NullKeyError(StateError):
    """A key is null."""


class KeyTypeError(StateError, TypeError):
    """A key of a type that cannot be a key, or that differs from the others."""


class StoreError(StateError):
    """A local store cannot be opened, read or written; user code is not the cause."""


class StoreVersionError(StoreError):
    """A local store has another version than the epoch expects."""


class StoreFullError(StoreError):
    """The disk, or the store's address space, is exhausted."""


class CorruptStoreError(StoreError):
    """A local store is damaged."""


class CheckpointError(HoldfastError):
    """A checkpoint could not be taken, stored or used."""


class CheckpointStorageError(CheckpointError):
    """Checkpoint storage refused an operation, failed, or is full."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint is damaged, truncated, foreign, or of a later format."""


class FencedError(CheckpointError):
    """Another driver has taken over the job; this one must not write any more."""


class RestoreError(CheckpointError):
    """There is no checkpoint to restore, or it does not fit the job."""


class SinkError(HoldfastError):
    """A sink could not write or publish."""


class UserFunctionError(HoldfastError):
    """User code raised; the message carries operator, subtask, key, row and traceback."""


class EventTimeError(HoldfastError):
    """A row's event time is missing or is not a valid timestamp."""


class OutputTypeError(HoldfastError, TypeError):
    """An output does not fit its declared type."""

    def __init__(self, message: str, row_index: int | None = None) -> None:
        super().__init__(message, row_index)

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def row_index(self) -> int | None:
        """Index of the output in its batch, if known."""
        index: int | None = self.args[1]
        return index


class JobExecutionError(HoldfastError):
    """The job failed; the cause is attached and quoted."""


class ControlError(HoldfastError):
    """A request to the control server of a driver has failed."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message, status)

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def status(self) -> int | None:
        """Status code of the answer; None if there was none."""
        status: int | None = self.args[1]
        return status
