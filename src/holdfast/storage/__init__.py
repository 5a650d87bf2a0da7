"""Stores files: on local disk, in an object store, in the driver's memory.

Knows names and bytes.

Not here: what the files of a job mean, which `checkpoint.files` knows.
Imports: nothing but errors.
"""
