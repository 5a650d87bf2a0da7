"""Control of the driver's jobs over HTTP, with Flink's routes.

Not here: starting jobs, and Spark: a job is known through the protocol `ControlledJob` alone.
Imports: `job`, `api`, `config`.
"""
