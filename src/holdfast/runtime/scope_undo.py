"""Undoing what was done to states of namespaces, under an error policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.state.table import NO_KEY

if TYPE_CHECKING:
    from holdfast.state.keyed_backend import StateScope


class ScopeUndo:
    """Remembers every key of a scope when it is first entered, for as long as it is asked to."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._entered: dict[tuple[int, Any], tuple[StateScope, Any, list[object]]] | None = None

    def begin(self) -> None:
        """Forget what was remembered, and remember anew from now on."""
        self._entered = {}

    def enter(self, scope: StateScope, key: Any) -> None:
        """Set the current key of a scope."""
        entered = self._entered
        if entered is not None and (id(scope), key) not in entered:
            remembered = [table.remember(key) for table in scope.tables]
            entered[id(scope), key] = (scope, key, remembered)
        scope.current.key = key

    def undo(self) -> None:
        """Put all back that was remembered."""
        for scope, key, remembered in (self._entered or {}).values():
            for place, table in enumerate(scope.tables):
                # A table without an entry was registered meanwhile: there was nothing to remember.
                known = place < len(remembered)
                table.put_back(key, remembered[place] if known else table.remember(NO_KEY))
        self._entered = {}
