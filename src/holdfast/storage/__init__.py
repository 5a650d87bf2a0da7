"""Stores files: on local disk, in an object store, in the driver's memory.

Knows names and bytes, not checkpoints: `checkpoint.files` knows what a job's files mean.
Imports `errors` only.
"""
