"""The command `holdfast`: runs programs, finds jobs, controls them, looks into savepoints.

Not here: what the commands do in a driver (`control`), and how a program runs (`spark`).
Imports: `registry`, `control`, `state_processor`, `checkpoint`, `config`; never Spark.
"""
