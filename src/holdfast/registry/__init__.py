"""Lists the jobs of a machine, so that people find them, running or not.

Not here: controlling a job (`control`), the command line (`cli`).
Imports: `checkpoint`, `job`, `state`, `config`; never Spark.
"""
