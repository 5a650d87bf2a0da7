"""The operators, a file for each family.

Must not import `runtime.windows`; `runtime.registry` maps kinds to operators of both.
"""
