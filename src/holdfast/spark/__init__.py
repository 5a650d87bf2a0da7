"""The Spark side of a job. The only package that imports pyspark.

The environment, the client and its supervisor, attempts and epochs. Decisions that need no Spark
belong in `job` or `checkpoint`.
"""
