"""Values and keys as bytes.

Codecs of declared types, and the canonical bytes and hashes of keys.

Not here: comparing stored schemas with declared ones (`types`), and storing the bytes (`state`).
Imports: `types`.
"""
