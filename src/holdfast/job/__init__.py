"""The job as data: plans, watermarks, timers, restarts, statistics.

Decides, and does no I/O. Knows no Spark; the checkpoint layer and Spark build upon it.
"""
