"""Local stores: a sorted map of bytes on disk, in LMDB or RocksDB.

Not here: types, which callers turn into bytes, and tables. These modules must not import
`state.tables`; `state.snapshots` opens snapshots of every kind.
Imports: `config`.
"""
