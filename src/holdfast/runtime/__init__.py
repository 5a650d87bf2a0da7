"""One subtask's work on record batches; knows no Spark."""
