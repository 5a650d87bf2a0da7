"""Rows to Arrow columns and back.

`rows` handles row classes, `readers` and `writers` convert single columns, `batches` whole
batches. `scalars` decides whether a single value fits its column. Imports `types` only.
"""
