"""Values and keys as bytes.

Codecs of declared types, and the canonical bytes and hashes of keys. `types` compares stored
schemas with declared ones; `state` stores the bytes.
"""
