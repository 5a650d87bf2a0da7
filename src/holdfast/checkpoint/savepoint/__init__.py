"""Savepoints: requests, parts, storage, ownership, and comparison with a program."""
