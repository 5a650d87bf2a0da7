"""Sinks to other systems.

One package for each system, and what they share. Only the front door imports a connector.

Not here: the protocol of sinks (`api.sinks`), and when output is published (`checkpoint.commit`).
Imports: `api`, `storage`, `types`.
"""
