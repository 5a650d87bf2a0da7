"""Rows to Arrow columns and back.

`rows` handles row classes, `readers` and `writers` convert single columns, `batches` whole
batches. `scalars` decides whether a single value fits its column.

Not here: deciding what type a stream has (`types.stream_type`).
Imports: nothing but errors and `types`.
"""
