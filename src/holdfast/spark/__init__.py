"""The Spark side of a job. The only package that imports pyspark.

The environment, the client and its supervisor, attempts and epochs.

Not here: decisions that need no Spark, which belong in `job` or `checkpoint`.
Imports: `registry`, `control`, `checkpoint`, `job`, `runtime`, `state`, `api`, `config`, `types`.
"""
