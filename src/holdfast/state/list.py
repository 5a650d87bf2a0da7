"""List state, stored in chunks so that appending never reads.

Each drain writes the elements appended to a key as one new chunk, numbered by epoch: a
MessagePack array of the elements' bytes. Reading concatenates the chunks. A list with many
chunks is rewritten as one on the next drain after it was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import override

from holdfast.api.names import public_name
from holdfast.api.state import ListState
from holdfast.errors import CorruptStoreError, StateValueError
from holdfast.state.store.header import RECOVERY
from holdfast.state.table import NO_KEY, StateTable

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_CHUNKS = 8
"""Number of chunks above which reading a list rewrites it as one."""


pack_chunk = msgspec.msgpack.Encoder().encode
"""Encodes a chunk from the bytes of its elements."""

_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


def unpack_chunk(chunk: bytes) -> list[bytes]:
    """Inverse of `pack_chunk`.

    Raises:
        CorruptStoreError: The bytes are no chunk.
    """
    try:
        return _unpack(chunk)
    except msgspec.DecodeError as error:
        raise CorruptStoreError(
            f"the bytes of a list in the store are damaged ({error}). {RECOVERY}"
        ) from error


class _Entry:
    """Cache entry of one key's list."""

    __slots__ = ("added", "chunks", "prefix", "rewrite", "stored")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        """Prefix of the store keys of its chunks."""
        self.stored: list[Any] | None = None
        """Elements in the store, once they are read; in the cache's form."""
        self.chunks = 0
        """Number of chunks in the store, once they are read."""
        self.added: list[Any] = []
        """Elements added since the last drain; in the cache's form."""
        self.rewrite = False
        """Whether `stored` and `added` replace the chunks in the store."""


@public_name("ListState")
class ListTable(StateTable, ListState[Any]):
    """A list per key."""

    __slots__ = ("_chunks", "_dirty", "_freeze", "_max_chunks", "_thaw")
    _cache: dict[Any, _Entry]

    def __init__(self, *args: Any, chunks: ChunkNumbers, max_chunks: int = MAX_CHUNKS) -> None:
        """See `StateTable`; `chunks` numbers what is appended."""
        super().__init__(*args)
        self._chunks = chunks
        self._max_chunks = max_chunks
        self._dirty: set[Any] = set()
        immutable = self._codec.immutable
        self._freeze = None if immutable else self._codec.encode
        self._thaw = None if immutable else self._codec.decode

    def get(self) -> list[Any]:
        """Elements for the current key, in a new list."""
        entry = self._entry()
        if entry.stored is None:
            self._read(entry)
        elif entry.chunks > self._max_chunks and not entry.rewrite:
            self._rewrite(entry)
        elements = [*(entry.stored or ()), *entry.added]
        return elements if self._thaw is None else list(map(self._thaw, elements))

    def add(self, value: Any) -> None:
        """Append one element."""
        entry = self._entry()
        entry.added.append(self._frozen(value))
        self._dirty.add(self._current.key)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append all of `values`, or none if one is invalid."""
        entry = self._entry()
        frozen = self._all_frozen(values)
        if frozen:
            entry.added.extend(frozen)
            self._dirty.add(self._current.key)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list."""
        entry = self._entry()
        entry.added = self._all_frozen(values)
        entry.stored = []
        entry.rewrite = True
        self._dirty.add(self._current.key)

    def clear(self) -> None:
        """Remove the list for the current key."""
        self.update(())

    @override
    def drain(self) -> Iterable[tuple[bytes, bytes | None]]:
        writes: list[tuple[bytes, bytes | None]] = []
        number = self._chunks.next()
        for key in self._dirty:
            entry = self._cache[key]
            prefix = entry.prefix
            if entry.rewrite:
                writes.extend((chunk, None) for chunk, _ in self._store.scan(prefix))
            added = [*(entry.stored or ()), *entry.added] if entry.rewrite else entry.added
            if added:
                frames = added if self._freeze else self._encoded(key, added)
                writes.append((prefix + number, pack_chunk(frames)))
            entry.chunks = (0 if entry.rewrite else entry.chunks) + bool(added)
            if entry.stored is not None:
                entry.stored.extend(entry.added)
            entry.added = []
            entry.rewrite = False
            if not added and not entry.stored:
                # The list is empty, which the store says as well.
                del self._cache[key]
        self._dirty.clear()
        return writes

    def _encoded(self, key: Any, elements: list[Any]) -> list[bytes]:
        try:
            return list(map(self._codec.encode, elements))
        except StateValueError as error:
            raise self._unfit(key, error) from error

    @override
    def save_point(self, key: Any) -> object:
        entry = self._cache.get(key)
        if entry is None:
            return None
        # Between two drains, a cached list is only appended to or replaced as a whole.
        return entry.stored, entry.added, len(entry.added), entry.rewrite, key in self._dirty

    @override
    def roll_back(self, key: Any, saved: Any) -> None:
        if saved is None:
            self._cache.pop(key, None)
            self._dirty.discard(key)
            return
        entry = self._cache[key]
        entry.stored, entry.added, length, entry.rewrite, dirty = saved
        del entry.added[length:]
        if not dirty:
            self._dirty.discard(key)

    def _entry(self) -> _Entry:
        key = self._current.key
        entry = self._cache.get(key)
        if entry is None:
            if key is NO_KEY:
                raise self._no_key()
            entry = self._cache[key] = _Entry(self._entry_prefix(key))
        return entry

    def _read(self, entry: _Entry) -> None:
        frames: list[bytes] = []
        chunks = 0
        for _, chunk in self._store.scan(entry.prefix):
            frames += unpack_chunk(chunk)
            chunks += 1
        entry.stored = frames if self._thaw else list(map(self._codec.decode, frames))
        entry.chunks = chunks
        if chunks > self._max_chunks:
            self._rewrite(entry)

    def _rewrite(self, entry: _Entry) -> None:
        """Write the list of the current key as one chunk at the next drain."""
        entry.rewrite = True
        self._dirty.add(self._current.key)

    def _frozen(self, value: Any) -> Any:
        if value is None:
            raise StateValueError(f"list state {self.name!r} cannot hold None")
        codec = self._codec
        if type(value) is not codec.exact_type:
            codec.check(value)
        return value if self._freeze is None else self._freeze(value)

    def _all_frozen(self, values: Iterable[Any]) -> list[Any]:
        if values is None:
            raise StateValueError(
                f"list state {self.name!r} takes an iterable of elements, not None; "
                "clear() empties it"
            )
        return [self._frozen(value) for value in values]


class ChunkNumbers:
    """Chunk numbers of one epoch, which sort after those of earlier epochs.

    epoch (8 bytes, big-endian) | count within the epoch (4 bytes, big-endian)
    """

    __slots__ = ("_count", "_epoch")

    def __init__(self, epoch: int) -> None:
        """Start the numbers of an epoch."""
        self.restart(epoch)

    def restart(self, epoch: int) -> None:
        """Start the numbers of another epoch."""
        self._epoch = epoch.to_bytes(8, "big")
        self._count = 0

    def next(self) -> bytes:
        """The next number."""
        self._count += 1
        return self._epoch + self._count.to_bytes(4, "big")
