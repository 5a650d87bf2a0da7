"""FileSink: Parquet, JSON and CSV files that appear once, with their checkpoint.

Not here: writing bytes to a file system (`storage`).
Imports: `api`, `storage`, `types`.
"""
