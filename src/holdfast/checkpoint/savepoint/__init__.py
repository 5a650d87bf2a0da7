"""Savepoints: requests, parts, storage, ownership, and comparison with a program.

Not here: the format of their tables (`state.tables`), and rewriting them (`state_processor`).
Imports: `job`, `runtime`, `state`, `api`, `serde`, `storage`, `config`, `types`.
"""
