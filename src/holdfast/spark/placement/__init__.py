"""Where subtasks run: pinning to executors, calls to them, and noticing their loss."""
