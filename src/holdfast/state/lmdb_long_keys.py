"""Entries whose keys are longer than LMDB allows, in a table of their own.

LMDB keys end at 511 bytes. A longer key is filed under

    0       495     the first bytes of the key
    495     16      128-bit XXH3 hash of the whole key

with a value that holds the key itself, so that a hash is never taken for the key:

    0       4       length k of the key, big-endian
    4       4       length v of the value, big-endian
    8       k       key
    8+k     v       value
    ...             again, for every other key of the same hash
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import lmdb

LONGEST_KEY: Final = 511
"""Longest key that LMDB takes as it is, in bytes."""

_STEM: Final = LONGEST_KEY - 16
_LENGTHS: Final = struct.Struct(">II")


class LongKeys:
    """The table of long keys; reads and writes in the transaction it is given."""

    __slots__ = ("_digest", "_table")

    def __init__(
        self, table: lmdb._Database, digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    ) -> None:
        """File keys in `table` under their 16-byte `digest`."""
        self._table = table
        self._digest = digest

    def get(self, transaction: lmdb.Transaction[bytes], key: bytes) -> bytes | None:
        """Value of `key`, or None."""
        return self._bucket(transaction, self._filed(key)).get(key)

    def put(self, transaction: lmdb.Transaction[bytes], key: bytes, value: bytes | None) -> None:
        """Set the value of `key`; None deletes it."""
        filed = self._filed(key)
        bucket = self._bucket(transaction, filed)
        if value is None:
            bucket.pop(key, None)
        else:
            bucket[key] = value
        if bucket:
            transaction.put(filed, _encode(bucket), db=self._table)
        else:
            transaction.delete(filed, db=self._table)

    def scan(
        self, transaction: lmdb.Transaction[bytes], prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in the order of the whole keys, from `start`.

        Keys that begin with the same 495 bytes are filed in the order of their hashes:
        they are held in memory together, to be sorted.
        """
        begin, beginning = max(prefix, start), prefix[:_STEM]
        cursor = transaction.cursor(self._table)
        if not (cursor.set_range(begin[:_STEM]) if begin else cursor.first()):
            return
        stem, group = b"", dict[bytes, bytes]()
        for filed, bucket in cursor.iternext():
            if not filed.startswith(beginning):
                break
            if filed[:_STEM] != stem:
                yield from _sorted_under(prefix, begin, group)
                stem, group = filed[:_STEM], {}
            group.update(_decode(bucket))
        yield from _sorted_under(prefix, begin, group)

    def _filed(self, key: bytes) -> bytes:
        return key[:_STEM] + self._digest(key)

    def _bucket(self, transaction: lmdb.Transaction[bytes], filed: bytes) -> dict[bytes, bytes]:
        found = transaction.get(filed, db=self._table)
        return {} if found is None else _decode(found)


def _sorted_under(
    prefix: bytes, begin: bytes, group: dict[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    return sorted(item for item in group.items() if item[0] >= begin and item[0].startswith(prefix))


def _encode(bucket: dict[bytes, bytes]) -> bytes:
    parts: list[bytes] = []
    for key, value in bucket.items():
        parts += (_LENGTHS.pack(len(key), len(value)), key, value)
    return b"".join(parts)


def _decode(bucket: bytes) -> dict[bytes, bytes]:
    entries, at = {}, 0
    while at < len(bucket):
        key_length, value_length = _LENGTHS.unpack_from(bucket, at)
        middle = at + _LENGTHS.size + key_length
        entries[bucket[middle - key_length : middle]] = bucket[middle : middle + value_length]
        at = middle + value_length
    return entries
