"""Sources: DataFrames, collections, replayable sources, and the position of a query.

Not here: storing the position in a checkpoint (`checkpoint.source_positions`).
Imports: `checkpoint`, `job`, `runtime`, `api`, `config`, `types`.
"""
