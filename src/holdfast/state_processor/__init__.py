"""Rewrites savepoints offline, without a job.

Not here: writing and reading their files (`checkpoint.savepoint`, `state.tables`).
Imports: `checkpoint`, `state`, `serde`, `storage`, `config`.
"""
