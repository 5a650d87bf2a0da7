"""Where subtasks run: pinning to executors, calls to them, and noticing their loss.

Not here: what subtasks do there.
Imports: `checkpoint`, `job`, `runtime`, `state`, `config`.
"""
