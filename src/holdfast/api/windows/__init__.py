"""Windows as users see them: assigners, triggers, evictors, functions.

Not here: the operator that runs them, in `runtime.windows`, and windowed streams, in `api.streams`.
Imports: `types`, `config`.
"""
