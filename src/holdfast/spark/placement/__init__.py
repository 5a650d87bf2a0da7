"""Where subtasks run: pinning to executors, rows on their way to them, calls, and losses.

Not here: what subtasks do there.
Imports: `checkpoint`, `job`, `runtime`, `state`, `api`, `config`.
"""
