"""Files somewhere: local disk, an object store, the driver's memory.

Knows names and bytes, not checkpoints: what a job's files mean is in `checkpoint.files`.
Imports the floor only.
"""
