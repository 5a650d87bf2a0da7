"""Rows to Arrow columns and back.

`rows` knows the row classes, `readers` and `writers` convert one column, `batches` converts whole
batches. `scalars` decides whether a single value fits its column. Imports `types` only.
"""
