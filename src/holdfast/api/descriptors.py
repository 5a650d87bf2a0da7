"""Descriptors: a state's name, kind and type.

Two descriptors are equal when they are of one kind and have one name. The type may
be a Python type, a Spark or Arrow type, or a serializer object; without one, values
are pickled, which is slow and cannot evolve. With a `ttl`, values expire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from holdfast.api.folds import Aggregator, Reducer
from holdfast.api.ttl import StateTtlConfig
from holdfast.api.type_variables import ACC, IN, OUT, K, T, V
from holdfast.errors import StateDescriptorError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable
    from typing import TypeAlias

    Ttl: TypeAlias = StateTtlConfig | None
    Reduce: TypeAlias = Reducer[T] | Callable[[T, T], T]


@dataclass(frozen=True)
class StateDescriptor:
    """Base class of descriptors: a name, unique within its operator, and a time to live."""

    kind: ClassVar[str] = "state"
    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True, compare=False)
    """How long values live; forever if None."""

    def __post_init__(self) -> None:
        """Check the name and the time to live."""
        if not isinstance(self.name, str) or not self.name:
            raise StateDescriptorError(
                f"a {self.kind} state needs a name: a non-empty string, not {self.name!r}"
            )
        if "\0" in self.name:
            raise StateDescriptorError(
                f"the state name {self.name!r} has a null character, which names cannot have"
            )
        if self.ttl is not None:
            self._check_ttl(self.ttl)

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Set the time to live, like the argument `ttl`.

        This changes the descriptor, as in Flink. Call it before you get the state.

        Raises:
            StateDescriptorError: `ttl_config` is not a `StateTtlConfig`.
        """
        self._check_ttl(ttl_config)
        object.__setattr__(self, "ttl", ttl_config)

    @property
    def time_to_live(self) -> StateTtlConfig | None:
        """The `ttl`, or None if it is missing or disabled."""
        return self.ttl if self.ttl is not None and self.ttl.is_enabled() else None

    def _check_ttl(self, ttl: object) -> None:
        if not isinstance(ttl, StateTtlConfig):
            raise StateDescriptorError(
                f"state {self.name!r}: a time to live is a StateTtlConfig, such as "
                f"StateTtlConfig('1 h'), not {ttl!r}"
            )


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ValueState`.

    Args:
        name: Unique within the operator.
        type: Type of the value.
        default: What `value()` returns while no value is set; copied on every access.
        ttl: How long a value lives.
    """

    kind: ClassVar[str] = "value"
    type: Any = field(default=None, compare=False)
    default: Any = field(default=None, compare=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, type: builtins.type[T], default: Any = ..., *, ttl: Ttl = ...
        ) -> None: ...

        @overload
        def __init__(
            self: ValueStateDescriptor[Any],
            name: str,
            type: Any = ...,
            default: Any = ...,
            *,
            ttl: Ttl = ...,
        ) -> None: ...

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ListState` by the type of its elements."""

    kind: ClassVar[str] = "list"
    type: Any = field(default=None, compare=False)

    if TYPE_CHECKING:

        @overload
        def __init__(self, name: str, type: builtins.type[T], *, ttl: Ttl = ...) -> None: ...

        @overload
        def __init__(
            self: ListStateDescriptor[Any], name: str, type: Any = ..., *, ttl: Ttl = ...
        ) -> None: ...

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Describes a `MapState` by the types of its keys and of its values."""

    kind: ClassVar[str] = "map"
    key_type: Any = field(default=None, compare=False)
    value_type: Any = field(default=None, compare=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, key_type: type[K], value_type: type[V], *, ttl: Ttl = ...
        ) -> None: ...

        @overload
        def __init__(
            self: MapStateDescriptor[Any, Any],
            name: str,
            key_type: Any = ...,
            value_type: Any = ...,
            *,
            ttl: Ttl = ...,
        ) -> None: ...

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a `ReducingState`.

    Args:
        name: Unique within the operator.
        reduce: A `ReduceFunction`, or a callable of two values; called as (old, new).
        type: Type of the value.
    """

    kind: ClassVar[str] = "reducing"
    reduce: Reduce[T] = field(compare=False)
    type: Any = field(default=None, compare=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, reduce: Reduce[T], type: builtins.type[T], *, ttl: Ttl = ...
        ) -> None: ...

        @overload
        def __init__(
            self, name: str, reduce: Reduce[T], type: Any = ..., *, ttl: Ttl = ...
        ) -> None: ...

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __post_init__(self) -> None:
        """Check that the function can be called and does not override open() or close()."""
        super().__post_init__()
        if getattr(self.reduce, "_is_rich", False):
            raise StateDescriptorError(
                f"state {self.name!r}: a reducing state takes a plain reduce function, not "
                "one with open() or close(); do that work in the operator's own open()"
            )
        if not isinstance(self.reduce, Reducer) and not callable(self.reduce):
            raise TypeError(
                f"state {self.name!r}: reduce must be a ReduceFunction or a callable of two "
                f"values, not {type(self.reduce).__name__}"
            )


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor, Generic[IN, ACC, OUT]):
    """Describes an `AggregatingState`.

    Args:
        name: Unique within the operator.
        aggregate: Creates accumulators, adds values to them and builds results.
        type: Type of the accumulator, which the state stores.
    """

    kind: ClassVar[str] = "aggregating"
    aggregate: Aggregator[IN, ACC, OUT] = field(compare=False)
    type: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Check that it is an aggregate function."""
        super().__post_init__()
        if not isinstance(self.aggregate, Aggregator):
            raise TypeError(
                f"state {self.name!r}: aggregate must be an AggregateFunction, not "
                f"{type(self.aggregate).__name__}"
            )
