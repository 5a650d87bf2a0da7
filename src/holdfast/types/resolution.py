"""Compares a stored type with the declared one and lists every problem.

Fields are matched by name. These changes lose nothing and are compatible:

    T -> T | U                              int32 -> int64, float32 -> float64
    Literal or Enum with further members    decimal(p,s) with no fewer digits on either side
    Literal -> its scalar type              list[T] <-> tuple[T, ...], set <-> frozenset
    tuple[T, U] -> list or tuple of both    bytes <-> bytearray
    plain types -> Any                      classes with fields added, removed or reordered
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.types.arrow import LEAVES
from holdfast.types.trees import (
    ANY,
    SEQUENCES,
    SETS,
    TypeTree,
    children_of,
    kind_of,
    may_be_missing,
    short_name,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.types.trees import Tree

    Assumed = frozenset[tuple[str, str, bool]]

# From narrow to wide, as in the table.
_INTEGERS = tuple(leaf.described for leaf in LEAVES if leaf.python is int)
_FLOATS = tuple(leaf.described for leaf in LEAVES if leaf.python is float)
_ALIKE = frozenset({"bytes", "bytearray"})
_PLAIN = frozenset({"any", "none", "bool", "int", "float", "str", "bytes"})
_SCALAR_OF = {str: "str", int: "int"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of comparing two types."""

    problems: tuple[str, ...] = ()
    direct: bool = True
    """Whether the decoder of the declared type reads the stored bytes."""

    def __add__(self, other: Outcome) -> Outcome:
        if other is FINE:
            return self
        return Outcome(self.problems + other.problems, self.direct and other.direct)


FINE = Outcome()


class TypeResolver:
    """Compares a stored type with the declared one."""

    def __init__(self, stored: Tree, declared: Tree) -> None:
        """Compare two descriptions."""
        self.stored = TypeTree(stored)
        self.declared = TypeTree(declared)

    def outcome(self) -> Outcome:
        """All problems of the whole types, each with its path."""
        declared = self.declared.followed(self.declared.root)
        path = short_name(declared["class"]) if kind_of(declared) == "class" else "value"
        found = self.compared(self.stored.root, self.declared.root, path, False, frozenset())
        if not found.direct and not found.problems and self._has_class_keys(self.stored.root):
            return Outcome(
                (
                    f"{path}: has a dict whose keys are of a class, and such values are read only "
                    "if fields of classes that are stored as maps change",
                )
            )
        return Outcome(tuple(dict.fromkeys(found.problems)), found.direct)

    def compared(
        self, stored: Tree, declared: Tree, path: str, exact: bool, assumed: Assumed
    ) -> Outcome:
        """Problems of one pair of types.

        Args:
            stored: Type that was written.
            declared: Type to read.
            path: Their path, for messages.
            exact: Whether different values must stay different, as keys of a dict must.
            assumed: Pairs of classes around this pair, which are being compared.
        """
        found = FINE
        for member, options in self.options(stored, declared):
            outcomes = [self._pair(member, option, path, exact, assumed) for option in options]
            if not outcomes:
                options = self.declared.members(declared)
                why = _why(member, options)
                return Outcome((f"{path}: {_was(stored, declared)}{why}",))
            found += next((one for one in outcomes if not one.problems), outcomes[0])
        return found

    def options(self, stored: Tree, declared: Tree) -> list[tuple[Tree, list[Tree]]]:
        """For every member of the stored type, the declared members that may take its values."""
        members, options = self.stored.members(stored), self.declared.members(declared)
        by_tag = max(_classes_in(members), _classes_in(options)) > 1
        return [
            (member, [option for option in options if self._takes(option, member, by_tag)])
            for member in members
        ]

    def _takes(self, declared: Tree, stored: Tree, by_tag: bool) -> bool:
        """Whether the declared type may take values of the stored one, ignoring their parts."""
        one, other = kind_of(stored), kind_of(declared)
        if other == ANY:
            return self._is_plain(stored)
        if one == other == "class":
            return not by_tag or tag_of(stored) == tag_of(declared)
        if one == "literal":
            values = stored["literal"]
            if other == "literal":
                return _within(values, declared["literal"])
            return other == _SCALAR_OF[type(values[0])]
        if one == "enum":
            return other == "enum" and _within(stored["values"], declared["values"])
        if one == "tuple":
            return other in SEQUENCES or (
                other == "tuple" and len(stored["tuple"]) == len(declared["tuple"])
            )
        if one in SEQUENCES or one in SETS:
            return other in (SEQUENCES if one in SEQUENCES else SETS)
        return one == other if one in ("class", "dict") else _widens(stored, declared)

    def _pair(
        self, stored: Tree, declared: Tree, path: str, exact: bool, assumed: Assumed
    ) -> Outcome:
        kind = kind_of(declared)
        match kind_of(stored):
            case "class" if kind == "class":
                return self._classes(stored, declared, path, exact, assumed)
            case "dict" if kind == "dict":
                return self._dicts(stored, declared, path, exact, assumed)
            case "tuple" if kind == "tuple":
                pairs = zip(stored["tuple"], declared["tuple"], strict=True)
                return _all(
                    self.compared(one, other, f"{path}[{i}]", exact, assumed)
                    for i, (one, other) in enumerate(pairs)
                )
            case "tuple" | "list" | "tuple_of" | "set" | "frozenset" if kind != ANY:
                exact = exact or kind in SETS
                return _all(
                    self.compared(part, declared[kind], f"{path}[]", exact, assumed)
                    for part in children_of(stored)
                )
        return FINE

    def _dicts(
        self, stored: Tree, declared: Tree, path: str, exact: bool, assumed: Assumed
    ) -> Outcome:
        (key, value), (new_key, new_value) = stored["dict"], declared["dict"]
        keys = self.compared(key, new_key, f"{path}[key]", True, assumed)
        if not keys.problems and not keys.direct:
            keys = Outcome((f"{path}[key]: {_was(key, new_key)}: keys of a dict stay as they are",))
        return keys + self.compared(value, new_value, f"{path}[value]", exact, assumed)

    def _classes(
        self, stored: Tree, declared: Tree, path: str, exact: bool, assumed: Assumed
    ) -> Outcome:
        pair = (stored["class"], declared["class"], exact)
        if pair in assumed:
            return FINE
        assumed |= {pair}
        old = {field["name"]: field for field in stored["fields"]}
        new = {field["name"]: field for field in declared["fields"]}
        found = Outcome(direct=_is_direct(stored, declared, list(old), list(new)))
        for name, field in new.items():
            place = f"{path}.{name}"
            if name not in old:
                found += _added(place, declared, field)
                continue
            found += self.compared(old[name]["type"], field["type"], place, exact, assumed)
            if field["required"] and may_be_missing(stored, old[name]):
                problem = f"{place}: may be missing in what is stored, and has no default now"
                found += Outcome((problem,))
        removed = [name for name in old if name not in new]
        if exact and removed:
            found += Outcome(tuple(f"{path}.{name}: is gone: {_DISTINCT}" for name in removed))
        return found

    def _is_plain(self, stored: Tree) -> bool:
        kind = kind_of(stored)
        if kind in ("list", "dict", "union"):
            parts = children_of(stored)
            return all(self._is_plain(self.stored.followed(part)) for part in parts)
        return kind in _PLAIN or kind == "literal"

    def _has_class_keys(self, root: Tree) -> bool:
        if kind_of(root) == "dict" and self._has_map(root["dict"][0]):
            return True
        return any(map(self._has_class_keys, children_of(root)))

    def _has_map(self, tree: Tree) -> bool:
        tree = self.stored.followed(tree)
        if kind_of(tree) == "class" and tree["wire"] == "map":
            return True
        return any(map(self._has_map, children_of(tree)))


_DISTINCT = "without it, elements of a set or keys of a dict could become equal"


def _all(outcomes: Any) -> Outcome:
    return sum(outcomes, FINE)


def _within(values: list[Any], allowed: list[Any]) -> bool:
    return {(type(v), v) for v in values} <= {(type(v), v) for v in allowed}


def _widens(stored: Tree, declared: Tree) -> bool:
    if stored == declared:
        return True
    if not isinstance(stored, str) or not isinstance(declared, str):
        return _is_wider_decimal(stored, declared)
    for ladder in (_INTEGERS, _FLOATS):
        if stored in ladder and declared in ladder:
            return ladder.index(stored) < ladder.index(declared)
    return {stored, declared} == _ALIKE


def _is_wider_decimal(stored: Tree, declared: Tree) -> bool:
    if not isinstance(declared, dict) or not kind_of(stored) == kind_of(declared) == "decimal":
        return False
    (digits, scale), (new_digits, new_scale) = stored["decimal"], declared["decimal"]
    return bool(scale <= new_scale and digits - scale <= new_digits - new_scale)


def _is_direct(stored: Tree, declared: Tree, old: list[str], new: list[str]) -> bool:
    """Whether the declared class reads the bytes itself, ignoring the types of its fields."""
    if stored["wire"] != declared["wire"] or tag_of(stored) != tag_of(declared):
        return False
    if stored["wire"] == "map":
        return not (declared.get("closed") and set(old) - set(new))
    return old == new or (declared["kind"] != "row" and old == new[: len(old)])


def tag_of(described: Tree) -> tuple[str, Any] | None:
    """The field that holds a class's tag, and the tag; None if it has none."""
    return (described.get("tag_field", "type"), described["tag"]) if "tag" in described else None


def _added(place: str, declared: Tree, field: dict[str, Any]) -> Outcome:
    if not field["required"]:
        return FINE
    advice = {"row": "make it nullable", "typed_dict": "make it NotRequired"}
    return Outcome(
        (f"{place}: is new and has no default; {advice.get(declared['kind'], 'give it one')}",)
    )


def _was(stored: Tree, declared: Tree) -> str:
    return f"was {text_of(stored)}, is {text_of(declared)}"


def _classes_in(members: list[Tree]) -> int:
    return sum(kind_of(member) == "class" for member in members)


def _why(member: Tree, options: list[Tree]) -> str:
    kind, kinds = kind_of(member), {kind_of(option) for option in options}
    if kind == "int" and "float" in kinds:
        return "; a float does not hold every int beyond 2**53: declare int | float"
    if kind in _INTEGERS and kinds & set(_FLOATS):
        return "; a float does not hold every integer: declare a wider integer"
    if kind == "none":
        return "; None may be stored: declare it too"
    if kind == ANY:
        return "; anything may be stored there"
    if kind in ("literal", "enum") and kind in kinds:
        allowed = [value for option in options for value in _values(option)]
        gone = [repr(value) for value in _values(member) if not _within([value], allowed)]
        return f"; {', '.join(gone)} may be stored: declare it too" if gone else ""
    return ""


def _values(tree: Tree) -> list[Any]:
    if kind_of(tree) not in ("literal", "enum"):
        return []
    values: list[Any] = tree["values"] if "values" in tree else tree["literal"]
    return values
