"""PostgresSink: rows of a PostgreSQL table, committed with their checkpoint."""
