"""Sinks to the systems outside: one module, or a few, for each of them."""
