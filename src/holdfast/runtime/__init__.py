"""Runs one stage of operators on one subtask, epoch after epoch. Knows no Spark.

`task` routes batches between operators and exchanges. `operator_task` runs one operator with its
keys, state and timers; `outlets` writes its output. Plans come in (`plan`), a report goes out
(`report`).

Not here: Spark, other subtasks, and what happens between epochs.
Imports: `state`, `api`, `serde`, `config`, `types`.
"""
