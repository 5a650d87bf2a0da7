"""The window operator: contents, triggers, merging, and a fast path."""
