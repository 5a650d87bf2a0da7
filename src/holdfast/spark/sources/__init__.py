"""Sources: DataFrames, collections, replayable sources, and the position of a query."""
