"""Keyed state of one operator on one subtask.

`backend` registers states and follows the current key; each kind of state has a module. A store
(`state.store`) keeps the bytes and takes snapshots.

Not here: checkpoints, which copy snapshots to storage.
Imports: `api`, `serde`, `config`, `types`.
"""
