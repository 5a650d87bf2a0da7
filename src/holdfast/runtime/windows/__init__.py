"""The window operator: contents, triggers, merging, and a fast path.

Not here: what users declare (`api.windows`), and the namespaces in which contents are stored
(`state.namespaces`).
Imports: `state`, `api`, `serde`.
"""
