"""Sinks to other systems. May import every layer below; nothing imports a connector."""
