"""How state survives.

`coordinator` decides and does no I/O; `checkpointer` and `completion` carry out what it says;
`service` is the one entry for a job. Workers are reached through the `WorkerCalls` protocol.
"""
