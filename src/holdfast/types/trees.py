"""Trees of described types (`types/schema.py`): traversal, messages and canonical form."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

Tree: TypeAlias = Any
"""Description of a type: the name of a scalar, or a dict."""

ANY, NONE = "any", "none"
SEQUENCES = ("list", "tuple_of")
SETS = ("set", "frozenset")


class TypeTree:
    """A described type with resolved references."""

    def __init__(self, root: Tree) -> None:
        """Collect the classes in the type."""
        self.root = root
        self._classes: dict[str, dict[str, Any]] = {}
        self._gather(root)

    def followed(self, tree: Tree) -> Tree:
        """Target of a reference; any other type unchanged."""
        if isinstance(tree, dict) and "ref" in tree:
            return self._classes[tree["ref"]]
        return tree

    def members(self, tree: Tree) -> list[Tree]:
        """Alternatives of a type: members of a union, literals by class, or the type itself."""
        tree = self.followed(tree)
        kind = kind_of(tree)
        if kind == "union":
            return [part for member in tree["union"] for part in self.members(member)]
        if kind == "literal":
            by_class: dict[type, list[Any]] = {}
            for value in tree["literal"]:
                by_class.setdefault(type(value), []).append(value)
            return [NONE if cls is type(None) else {"literal": by_class[cls]} for cls in by_class]
        return [NONE if tree == "null" else tree]

    def _gather(self, tree: Tree) -> None:
        if isinstance(tree, dict) and "class" in tree:
            self._classes[tree["class"]] = tree
        for child in children_of(tree):
            self._gather(child)


def kind_of(tree: Tree) -> str:
    """Name of a scalar, or kind of a dict: `list`, `class`, ..."""
    return tree if isinstance(tree, str) else next(iter(tree))


def children_of(tree: Tree) -> list[Tree]:
    """Types directly inside one."""
    match kind_of(tree):
        case "list" | "tuple_of" | "set" | "frozenset" as kind:
            return [tree[kind]]
        case "tuple" | "dict" | "union" as kind:
            return list(tree[kind])
        case "class":
            return [field["type"] for field in tree["fields"]]
    return []


def short_name(name: str) -> str:
    """Name of a class without its module and outer scope."""
    head, bracket, rest = name.partition("[")
    return head.rpartition(".")[2] + bracket + rest


def text_of(tree: Tree) -> str:
    """The type as its author would write it, for messages."""
    kind = kind_of(tree)
    match kind:
        case "none":
            return "None"
        case "class" | "ref" | "enum":
            return short_name(tree[kind])
        case "union":
            return " | ".join(map(text_of, tree["union"]))
        case "literal":
            return f"Literal[{', '.join(map(repr, tree['literal']))}]"
        case "decimal" if isinstance(tree, dict):
            return f"decimal({tree['decimal'][0]},{tree['decimal'][1]})"
        case "tuple_of":
            return f"tuple[{text_of(tree[kind])}, ...]"
        case "list" | "set" | "frozenset" | "tuple" | "dict":
            return f"{kind}[{', '.join(map(text_of, children_of(tree)))}]"
    return kind


def may_be_missing(described: dict[str, Any], field: dict[str, Any]) -> bool:
    """Whether stored values of the class can lack the field."""
    return not field["required"] and (
        described["kind"] == "typed_dict" or bool(described.get("omits"))
    )


def canonical_tree(root: Tree) -> Tree:
    """Canonical form: equal for types whose values have the same bytes, whatever their names."""
    return _Canonical(TypeTree(root)).of(root)


class _Canonical:
    def __init__(self, types: TypeTree) -> None:
        self._types = types
        self._numbers: dict[str, int] = {}

    def of(self, tree: Tree) -> Tree:
        tree = self._types.followed(tree)
        kind = kind_of(tree)
        match kind:
            case "class":
                return self._class(tree)
            case "enum":
                return {"enum": _in_order(tree["values"])}
            case "literal":
                return {"literal": _in_order(tree["literal"])}
            case "union":
                return {"union": _in_order([self.of(member) for member in tree["union"]])}
            case "tuple" | "dict":
                return {kind: [self.of(part) for part in tree[kind]]}
            case "list" | "tuple_of" | "set" | "frozenset":
                return {kind: self.of(tree[kind])}
        return tree

    def _class(self, tree: dict[str, Any]) -> Tree:
        known = self._numbers.get(tree["class"])
        if known is not None:
            return {"ref": known}
        self._numbers[tree["class"]] = len(self._numbers)
        fields = tree["fields"]
        if tree["wire"] == "map":
            fields = sorted(fields, key=lambda field: str(field["name"]))
        described = {
            "class": tree["wire"],
            "fields": [
                [field["name"], self.of(field["type"]), may_be_missing(tree, field)]
                for field in fields
            ],
        }
        if "tag" in tree:
            described["tag"] = [tree.get("tag_field", "type"), tree["tag"]]
        return described


def _in_order(parts: list[Any]) -> list[Any]:
    return sorted(parts, key=lambda part: msgspec.json.encode(part, order="sorted"))
