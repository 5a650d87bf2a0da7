"""Types of values: declarations, Arrow types, stored descriptions and schema evolution.

Nothing here does I/O or knows about state. Imports only `errors` and `clock`.
"""
