"""Keyed state of one operator on one subtask.

`backend` registers states and follows the current key; one module per kind of state. Bytes lie in
a store (`state.store`). Checkpoints are not known here: a store only takes snapshots of itself.
"""
