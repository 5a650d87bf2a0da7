"""Savepoints worked on offline: read and written anew, with no job and no Spark."""
