"""Savepoints worked on offline, without a job."""
