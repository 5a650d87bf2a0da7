"""State with TTL: expiring states, store layout and the sweep of expired entries."""
