"""PostgresSink: rows of a PostgreSQL table, committed with their checkpoint.

The only package that imports psycopg.

Not here: other databases.
Imports: `api`, `types`.
"""
