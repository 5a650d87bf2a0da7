"""One task: a stage of operators on one subtask, in one epoch. Knows no Spark.

`task` routes batches between operators and exchanges; `operator_task` runs one operator with its
state, timers and outputs. Plans come in (`plan`), a report goes out (`report`).
"""
