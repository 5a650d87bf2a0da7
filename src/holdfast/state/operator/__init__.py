"""Operator state: lists, union lists and broadcast maps, and their redistribution.

Not here: state that belongs to a key (`state`).
Imports: `api`, `serde`.
"""
