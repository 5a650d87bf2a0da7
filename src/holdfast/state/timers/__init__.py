"""Timers of one operator on one subtask: their table, those that are due, their bytes."""
