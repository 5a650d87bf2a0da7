"""FileSink: Parquet, JSON and CSV files that appear once, with their checkpoint."""
