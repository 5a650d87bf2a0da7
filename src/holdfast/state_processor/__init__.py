"""Rewrites savepoints offline, without a job."""
