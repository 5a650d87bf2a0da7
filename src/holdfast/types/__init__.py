"""Types of values: declarations, Arrow types, stored descriptions and schema evolution.

Not here: I/O, bytes (`serde`) and state (`state`).
Imports: nothing but errors.
"""
