"""What users write: streams, functions, descriptors, types, settings."""
