"""One sorted map of bytes on local disk, on LMDB or RocksDB.

Knows keys and values as bytes only. Must not import `state.tables`: a snapshot of any kind is
opened by `state.snapshots`.
"""
