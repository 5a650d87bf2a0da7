"""Local stores: a sorted map of bytes on disk, in LMDB or RocksDB.

Keys and values are bytes. Must not import `state.tables`; `state.snapshots` opens snapshots of
every kind.
"""
