"""State backends: which local store keeps the state of a job, and its options.

A state backend is a value that is sent to the workers with the job. It opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from holdfast.errors import ConfigurationError

Compression: TypeAlias = Literal["none", "lz4", "zstd"]
"""How RocksDB compresses its blocks on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashMapStateBackend:
    """State at memory speed, in memory-mapped files; it should fit in memory.

    Example:
        >>> HashMapStateBackend().name
        'hashmap'
    """

    name: ClassVar[str] = "hashmap"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRocksDBStateBackend:
    """State on the executor's disk in RocksDB; it may be larger than memory.

    Example:
        >>> EmbeddedRocksDBStateBackend(compression="lz4").name
        'rocksdb'
    """

    name: ClassVar[str] = "rocksdb"

    block_cache_bytes: int = 32 * 1024 * 1024
    """Memory for uncompressed blocks, per open store.

    It is used for compressed blocks, and for all blocks if the worker's address space is limited.
    Otherwise RocksDB reads uncompressed blocks directly from the page cache.
    """

    compression: Compression = "none"
    """Compression of blocks: `none` reads fastest, `lz4` and `zstd` save disk space."""

    enable_incremental_checkpointing: bool = False
    """Whether checkpoints upload only new files.

    `env.set_state_backend` turns this into `execution.checkpointing.incremental`, the option that
    decides.
    """

    bloom_bits_per_key: int = 10
    """Bits per key that let a read skip files without the key; 0 turns it off."""

    def __post_init__(self) -> None:
        """Check the options."""
        _require_int("block_cache_bytes", self.block_cache_bytes, at_least=1024 * 1024)
        _require_int("bloom_bits_per_key", self.bloom_bits_per_key, at_least=0)
        if self.compression not in get_args(Compression):
            known = ", ".join(map(repr, get_args(Compression)))
            raise ConfigurationError(
                f"EmbeddedRocksDBStateBackend: compression is {self.compression!r}; "
                f"choose one of {known}"
            )


StateBackend: TypeAlias = HashMapStateBackend | EmbeddedRocksDBStateBackend
"""Any state backend."""

_BACKENDS: Final[dict[str, type[HashMapStateBackend] | type[EmbeddedRocksDBStateBackend]]] = {
    backend.name: backend for backend in (HashMapStateBackend, EmbeddedRocksDBStateBackend)
}


def backend_named(name: str) -> StateBackend:
    """The backend of that name (`hashmap` or `rocksdb`), with default options.

    Raises:
        ConfigurationError: No backend has that name.
    """
    backend = _BACKENDS.get(name)
    if backend is None:
        known = ", ".join(map(repr, _BACKENDS))
        raise ConfigurationError(f"there is no state backend {name!r}; choose one of {known}")
    return backend()


def _require_int(option: str, value: object, *, at_least: int) -> None:
    # A bool is an int to Python, but never a size.
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigurationError(
            f"EmbeddedRocksDBStateBackend: {option} is {value!r}; "
            f"give a whole number of at least {at_least}"
        )
