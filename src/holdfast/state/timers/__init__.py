"""Timers of one operator on one subtask: table, due timers and store layout.

Not here: which epoch fires them (`job.timer_schedule`), and calling the function (`runtime`).
Imports: `serde`.
"""
