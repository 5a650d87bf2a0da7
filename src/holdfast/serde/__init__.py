"""Values and keys as bytes.

One codec per declared type, and the canonical bytes and hash of keys. How a stored schema differs
from a declared one is decided in `types`; where bytes are kept is the business of `state`.
"""
