"""The job as data: plans, watermarks, timers, restarts, statistics.

These modules decide; the checkpoint layer and the Spark layer act on their decisions.

Not here: I/O, and Spark.
Imports: `runtime`, `state`, `api`, `serde`, `config`, `types`.
"""
