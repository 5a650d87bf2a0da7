"""State with TTL: expiring states, store layout and the sweep of expired entries.

Not here: the settings of a time to live (`api.ttl`).
Imports: `api`, `serde`.
"""
