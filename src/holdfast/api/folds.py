"""How values are folded into one: the part of reduce and aggregate functions that a state uses.

Descriptors of states refer to these classes, and functions derive from them. `open` and
`close` are not part of them: a state calls neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from holdfast.api.type_variables import ACC, IN, OUT, T


class Reducer(ABC, Generic[T]):
    """Folds two values into one of the same type."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """Fold the newer `value2` into `value1`."""


class Aggregator(ABC, Generic[IN, ACC, OUT]):
    """Adds values to an accumulator, and builds a result from it."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """A new, empty accumulator."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Add `value`; may change and return the accumulator that it was given."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result of the values that have been added."""

    @abstractmethod
    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """An accumulator with the values of both."""
