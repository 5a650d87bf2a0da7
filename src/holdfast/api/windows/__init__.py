"""Windows as users see them: assigners, triggers, evictors, functions.

The operator that runs them is in `runtime.windows`.
"""
