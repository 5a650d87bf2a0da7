"""Recovery: chooses a checkpoint, checks that it fits the program, and builds the stores.

Not here: whether a failed job restarts (`job.restart`), and where sources continue
(`checkpoint.source_positions`).
Imports: `job`, `runtime`, `state`, `api`, `storage`, `config`.
"""
