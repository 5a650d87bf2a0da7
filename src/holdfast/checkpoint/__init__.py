"""Checkpoints, savepoints, recovery, and exactly-once output.

`service` is the entry of a running job. `coordinator` decides and does no I/O. `tracker` holds the
pending checkpoints under one lock. `checkpointer` takes checkpoints, and `completion` executes the
coordinator's instructions. The `WorkerCalls` protocol reaches the executors.

Not here: Spark, and taking snapshots on a subtask, which is the work of `runtime`.
Imports: `job`, `runtime`, `state`, `api`, `serde`, `storage`, `config`, `types`.
"""
