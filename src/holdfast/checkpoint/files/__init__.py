"""What a job keeps in checkpoint storage: names, metadata, records, fences, cleaning up."""
