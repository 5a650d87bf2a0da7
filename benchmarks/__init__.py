"""Throughput of Holdfast beside what Spark itself offers, on the same work."""
