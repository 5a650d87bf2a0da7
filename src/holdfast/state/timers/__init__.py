"""Timers of one operator on one subtask: table, due timers and store layout."""
