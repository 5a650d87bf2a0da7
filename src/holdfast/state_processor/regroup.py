"""Assigns keyed state to another number of key groups.

The group of a key follows from its hash, so every entry may move: the two bytes of its key group
change, and with them its position. The moved entries are unordered. A store on the local disk,
which may be larger than memory, sorts them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.config.backends import EmbeddedRocksDBStateBackend
from holdfast.serde.key_reader import KEY_AT, KeyDecoder, length_prefixed
from holdfast.serde.key_shapes import KeyShape, KeyTypes
from holdfast.serde.keys import KeyEncoder
from holdfast.state.backend import OPERATOR_KEY
from holdfast.state.catalog import STATE_PREFIX
from holdfast.state.restore import CHUNK_BYTES, chunks, filled_store
from holdfast.state.store.opening import open_store
from holdfast.state.timers.table import KIND as TIMERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore

    Entry = tuple[bytes, bytes]

logger = logging.getLogger("holdfast")

SCRATCH: Final = EmbeddedRocksDBStateBackend()
"""Backend of the temporary stores."""

_TIME: Final = 8
"""Bytes of a timer's timestamp, which precedes its key."""
_ANY_STATE: Final = b"\x00\x00"


def regroup(
    source: Path,
    version: str,
    directory: Path,
    max_parallelism: int,
    who: str,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Write a snapshot of a store's keyed state and timers, with other key groups.

    Args:
        source: Directory of a store with the backend `SCRATCH`; it does not change.
        version: Version of the store and of the snapshot.
        directory: New directory of the snapshot; temporary files are next to it.
        max_parallelism: New number of key groups.
        who: The operator, for the log.
        chunk_bytes: Approximate memory for entries in transit.

    Raises:
        StoreFullError: The disk is full.
        StateError: The store cannot be read.
    """
    old = open_store(SCRATCH, source, version)
    sorting = directory.with_name(f"{directory.name}.sorting")
    try:
        entries = _logged(_moved(old, max_parallelism, chunk_bytes), who)
        new = filled_store(SCRATCH, sorting, entries, chunk_bytes)
    finally:
        old.abort()
    new.commit(version, directory)


def _logged(chunks: Iterator[list[Entry]], who: str) -> Iterator[Entry]:
    count = 0
    for chunk in chunks:
        yield from chunk
        count += len(chunk)
        logger.info("%s: %d entries have their new key groups", who, count)


def _moved(store: StateStore, max_parallelism: int, chunk_bytes: int) -> Iterator[list[Entry]]:
    """Yield the entries of the new store in chunks."""
    operator: dict[str, Any] = msgspec.json.decode(store.get(OPERATOR_KEY) or b"{}")
    if not operator:
        return
    described = list(store.scan(STATE_PREFIX))
    about = msgspec.json.encode(operator | {"max_parallelism": max_parallelism})
    yield [(OPERATOR_KEY, about), *described]
    if operator["key"] is None:
        # Without a key there are no entries.
        return
    shape = KeyShape(operator["key"])
    decoder, encoder = KeyDecoder(shape), KeyEncoder(max_parallelism, KeyTypes(shape))
    for _, entry in described:
        state = msgspec.json.decode(entry)
        key_at = KEY_AT + (_TIME if state["kind"] == TIMERS else 0)
        entries = store.scan(int(state["id"]).to_bytes(2, "big"))
        for chunk in chunks(entries, chunk_bytes):
            keys = decoder.decode_all([length_prefixed(key, key_at)[0] for key, _ in chunk])
            beginnings = encoder.encode_all(_ANY_STATE, keys)
            yield [
                (key[:2] + beginning[2:4] + key[4:], value)
                for (key, value), beginning in zip(chunk, beginnings, strict=True)
            ]
