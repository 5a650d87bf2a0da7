"""What a job keeps in checkpoint storage: names, metadata, records, fences, cleaning up.

Not here: when files are written or deleted, which `checkpoint` decides, and how storage does it
(`storage`).
Imports: `job`, `runtime`, `api`, `storage`, `config`.
"""
