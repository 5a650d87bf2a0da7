"""Lists running jobs for people and tools, and controls them.

Not here: starting a job (`spark`), the command line (`cli`).
Imports: `checkpoint`, `job`, `state`, `config`; never Spark.
"""
