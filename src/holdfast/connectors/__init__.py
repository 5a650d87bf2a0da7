"""Sinks to other systems.

One package for each system. Nothing imports a connector, except the front door.

Not here: the protocol of sinks (`api.sinks`), and when output is published (`checkpoint.commit`).
Imports: `api`, `storage`, `types`.
"""
