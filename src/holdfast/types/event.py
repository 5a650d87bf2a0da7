"""Events: rows as light named tuples.

A stream declared by its columns carries events, tuples with named fields. All events with
the same column names share one class, in every process.
"""

from __future__ import annotations

import copyreg
from collections import namedtuple
from functools import cache
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self


class _EventType(type):
    """Type of the generated classes; lets a class pickle by its column names."""

    _columns: tuple[str, ...]


class Event(tuple[Any, ...], metaclass=_EventType):
    """One row: an immutable tuple with named fields.

    `event.url`, `event["url"]` and `event[0]` read the same field; attributes are the
    fastest. An event equals the plain tuple of its values and has its hash. A column
    whose name is no identifier is read as `event["the name"]`, or by the attribute `_N`,
    where N is its position.

    Calling the class takes one iterable, as `tuple` does, and checks nothing: it is
    the constructor of the hot path. `_make` checks the number of values.
    """

    __slots__ = ()

    _fields: ClassVar[tuple[str, ...]] = ()
    _columns: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}

    if TYPE_CHECKING:

        def __new__(cls, values: Iterable[Any] = (), /) -> Self:
            """Event of these values, unchecked."""

        def __getattr__(self, name: str) -> Any:
            """Field of a column; for type checkers, which do not know the columns."""

    def __getitem__(self, key: Any) -> Any:
        """Field at a position, fields of a slice, or field of a column."""
        if key.__class__ is str:
            return tuple.__getitem__(self, self._positions[key])
        return tuple.__getitem__(self, key)

    def __repr__(self) -> str:
        """`Event(url='/a', n=1)`; names that are no identifiers are quoted."""
        labels = (
            column if column == field else repr(column)
            for column, field in zip(self._columns, self._fields, strict=True)
        )
        pairs = zip(labels, self, strict=True)
        return f"Event({', '.join(f'{label}={value!r}' for label, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as column names and values, so that any process can rebuild it."""
        return _restored, (self._columns, tuple(self))

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        """Event of these values; there must be one per column."""
        event = cls(values)
        if len(event) != len(cls._columns):
            raise TypeError(f"expected {len(cls._columns)} values, got {len(event)}")
        return event

    def _asdict(self) -> dict[str, Any]:
        """Values by column name, in column order."""
        return dict(zip(self._columns, self, strict=True))

    def _replace(self, **changes: Any) -> Self:
        """Copy with some fields changed, by column name or attribute."""
        values = list(self)
        attributes = {field: position for position, field in enumerate(self._fields)}
        for name, value in changes.items():
            position = self._positions.get(name, attributes.get(name))
            if position is None:
                raise ValueError(f"no field {name!r}; there are {', '.join(self._columns)}")
            values[position] = value
        return self._make(values)


@cache
def event_class(columns: tuple[str, ...]) -> type[Event]:
    """Class of the events with these columns, cached.

    If columns share a name, it refers to the first.
    """
    attributes = _attributes(columns)
    positions: dict[str, int] = {}
    for position, column in enumerate(columns):
        positions.setdefault(column, position)
    # A named tuple's descriptors read a field in C; its constructor is what we avoid.
    named: Callable[[str, list[str]], type] = namedtuple
    places = named("Places", [f"p{i}" for i in range(len(columns))])
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": __name__,
        "__match_args__": attributes,
        "_fields": attributes,
        "_columns": columns,
        "_positions": positions,
    }
    members.update((name, vars(places)[f"p{i}"]) for i, name in enumerate(attributes))
    return cast("type[Event]", _EventType("Event", (Event,), members))


def _attributes(columns: tuple[str, ...]) -> tuple[str, ...]:
    taken: set[str] = {f"_{position}" for position in range(len(columns))}
    names = []
    for position, column in enumerate(columns):
        usable = (
            column.isidentifier()
            and not iskeyword(column)
            and column not in taken
            and column not in _RESERVED
            and not column.startswith("__")
        )
        names.append(column if usable else f"_{position}")
        taken.add(column)
    return tuple(names)


_RESERVED = frozenset(name for name in vars(Event) if name.startswith("_"))


def _restored(columns: tuple[str, ...], values: tuple[Any, ...]) -> Event:
    return event_class(columns)(values)


def _reduced(cls: _EventType) -> str | tuple[Any, ...]:
    if cls is Event:
        return "Event"
    return event_class, (cls._columns,)


copyreg.pickle(_EventType, _reduced)
