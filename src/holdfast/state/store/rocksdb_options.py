"""RocksDB options for a store that is opened once per epoch."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Final

import rocksdict

if TYPE_CHECKING:
    from holdfast.config.backends import EmbeddedRocksDBStateBackend

FILES_BEFORE_MERGE: Final = 8
"""Number of commits before their files are merged.

Each unmerged file makes reads 3 % slower, and a merge takes several times as long as writing
an epoch; eight balances the two.
"""

_MEBIBYTE: Final = 1024 * 1024


def database_options(backend: EmbeddedRocksDBStateBackend) -> rocksdict.Options:
    """Options of the database and of its one column family."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(_table_options(backend))
    compressions: Any = rocksdict.DBCompressionType
    options.set_compression_type(getattr(compressions, backend.compression)())
    # Blocks are read from memory maps, which takes address space for all files.
    in_place = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    options.set_allow_mmap_reads(in_place)
    # The kernel detects random reads itself, and reads ahead when files are cold.
    options.set_advise_random_on_open(False)
    _tune_compaction(options)
    _tune_opening(options)
    return options


def _table_options(backend: EmbeddedRocksDBStateBackend) -> rocksdict.BlockBasedOptions:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(backend.block_cache_bytes))
    table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    if backend.bloom_bits_per_key:
        table.set_bloom_filter(backend.bloom_bits_per_key, False)
    return table


def _tune_compaction(options: rocksdict.Options) -> None:
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_level_zero_file_num_compaction_trigger(FILES_BEFORE_MERGE)
    options.set_max_bytes_for_level_base(64 * _MEBIBYTE)
    options.set_target_file_size_base(16 * _MEBIBYTE)
    # Commits ingest whole files and wait for merges themselves; do not throttle writes.
    options.set_level_zero_slowdown_writes_trigger(1000)
    options.set_level_zero_stop_writes_trigger(2000)


def _tune_opening(options: rocksdict.Options) -> None:
    # A store is opened once per epoch: open files on demand, collect no statistics in the
    # background, and keep only the last log.
    options.set_max_open_files(1024)
    options.set_max_file_opening_threads(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    # Entries bypass RocksDB's write buffer.
    options.set_write_buffer_size(_MEBIBYTE)
