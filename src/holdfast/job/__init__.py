"""The job as data: plans, watermarks, timers, restarts, statistics.

These modules decide and do no I/O. They do not know Spark; the checkpoint layer and the Spark layer
build on them.
"""
