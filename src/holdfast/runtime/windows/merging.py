"""Windows that merge: the open windows of a key, and where each has its contents.

When windows merge, the contents stay where one of them had them, and those of the others are
added to them; so a session that grows element by element moves nothing. The open windows
are state of the key: pairs of a window's bytes and the bytes of the window that holds its
contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.api.descriptors import ValueStateDescriptor
from holdfast.api.state import ValueState
from holdfast.state.table import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.windows.assigners import MergingWindowAssigner
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.namespaces import StateScope

    Merge = Callable[[Any, list[Any], bytes, list[bytes]], None]
    """Called with a new window, the windows it takes the place of, where its contents lie, and
    where the contents lie that are to be added to them."""

OPEN_WINDOWS: Final = "merging-window-set"
"""Name of the state."""


class ScopeUndo:
    """Saves the entries of a scope when they are first entered, to roll them back."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._entered: dict[tuple[int, Any], tuple[StateScope, Any, list[object]]] | None = None

    def begin(self) -> None:
        """Forget all saved entries, and start again."""
        self._entered = {}

    def enter(self, scope: StateScope, key: Any) -> None:
        """Set the current key of a scope."""
        entered = self._entered
        if entered is not None and (id(scope), key) not in entered:
            saved = [table.save_point(key) for table in scope.tables]
            entered[id(scope), key] = (scope, key, saved)
        scope.current.key = key

    def undo(self) -> None:
        """Roll back all saved entries."""
        for scope, key, saved in (self._entered or {}).values():
            for place, table in enumerate(scope.tables):
                # A table without a saved entry was registered meanwhile, and was empty before.
                known = place < len(saved)
                table.roll_back(key, saved[place] if known else table.save_point(NO_KEY))
        self._entered = {}


class MergingWindows:
    """The open windows of the current key."""

    def __init__(self, assigner: MergingWindowAssigner, backend: KeyedStateBackend) -> None:
        """Windows that `assigner` merges."""
        self._assigner = assigner
        self._window_type = assigner.window_type
        state = backend.register(
            ValueStateDescriptor(OPEN_WINDOWS, tuple[tuple[bytes, bytes], ...])
        )
        assert isinstance(state, ValueState)
        self._state: ValueState[tuple[tuple[bytes, bytes], ...]] = state

    def contents_of(self, window: bytes) -> bytes | None:
        """The window that holds the contents of a window; None if it is not open."""
        return next((place for known, place in self._state.value() or () if known == window), None)

    def add(self, window: Any, merge: Merge) -> tuple[Any, bytes]:
        """Open a window, or merge it with those that it overlaps.

        Returns:
            The window that holds `window` now, and where its contents lie.
        """
        new = window.to_bytes()
        places = dict(self._state.value() or ())
        if new in places:
            return window, places[new]
        from_bytes = self._window_type.from_bytes
        known = {from_bytes(data): data for data in places}
        for result, members in self._assigner.merge_windows([*known, window]):
            if window not in members:
                continue
            old = [known[member] for member in members if member in known]
            target, *others = [places.pop(data) for data in old]
            data = result.to_bytes()
            places[data] = target
            self._state.update(tuple(places.items()))
            # A window that contains the new one is the same as before.
            if old != [data]:
                merge(result, [from_bytes(one) for one in old], target, others)
            return result, target
        places[new] = new
        self._state.update(tuple(places.items()))
        return window, new

    def retire(self, window: bytes) -> None:
        """Forget a window."""
        left = tuple(pair for pair in self._state.value() or () if pair[0] != window)
        self._state.update(left or None)
