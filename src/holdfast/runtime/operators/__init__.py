"""The operators, a file for each family.

Not here: windows. These modules must not import `runtime.windows`; `runtime.registry` maps kinds to
operators of both.
Imports: `state`, `api`, `serde`, `types`.
"""
