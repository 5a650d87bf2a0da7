"""Turns Spark's type language, text and JSON, into Arrow types.

    columns   := column ("," column)*
    column    := name [":"] type ["NOT" "NULL"] ["COMMENT" string]
    type      := atomic | "decimal" ["(" p ["," s] ")"] | "varchar" "(" n ")" | ...
               | "array" "<" type ">" | "map" "<" type "," type ">"
               | "struct" "<" [columns] ">"
    name      := word | "`" any characters, a backquote doubled "`"

Type names are case-insensitive. Timestamps are in UTC until a session sets its zone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from holdfast.errors import TypeDeclarationError
from holdfast.types.arrow import DDL_TYPES, NAIVE_TIMESTAMP, array_of, map_of

if TYPE_CHECKING:
    from collections.abc import Mapping


_UNSUPPORTED: dict[str, str] = {
    "interval": "store the length as a bigint, say of microseconds",
    "variant": "store the document as a string, or declare its fields as a struct",
    "geometry": "store it as binary (WKB)",
    "geography": "store it as binary (WKB)",
    "object": "declare the columns it holds",
    "udt": "declare the type it is stored as",
}


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>\w+)
      | `(?P<quoted>(?:[^`]|``)*)`
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<sign>[<>(),:])
    )""",
    re.VERBOSE,
)


# Words that may follow a bare type; any other word means that the text has columns.
_TYPE_TAILS = frozenset({"collate", "year", "month", "day", "hour", "minute", "second", "without"})


def declared_columns(spec: Any) -> pa.Schema | pa.DataType | None:
    """What a DDL string, a Spark type, or an Arrow schema or type declares; None for others.

    Raises:
        TypeDeclarationError: The text is not a type, or a Spark type has no columnar form.
    """
    if isinstance(spec, str):
        return parse_ddl(spec)
    if hasattr(spec, "jsonValue"):
        return parse_json((spec() if isinstance(spec, type) else spec).jsonValue())
    return spec if isinstance(spec, pa.Schema | pa.DataType) else None


def parse_ddl(text: str) -> pa.Schema | pa.DataType:
    """Parse a DDL string: a schema if it has columns, else a type.

    Raises:
        TypeDeclarationError: The text is not a type; the message shows the position.
    """
    return _Parser(text).whole()


def parse_json(spec: str | Mapping[str, Any]) -> pa.DataType:
    """Parse the JSON value of a Spark type.

    Raises:
        TypeDeclarationError: It contains a type without a columnar form.
    """
    if isinstance(spec, str):
        return _Parser(spec).type_alone()
    match spec["type"]:
        case "struct":
            return pa.struct([_json_field(field) for field in spec["fields"]])
        case "array":
            element = parse_json(spec["elementType"])
            return array_of(element, nullable=spec["containsNull"])
        case "map":
            key, value = parse_json(spec["keyType"]), parse_json(spec["valueType"])
            return map_of(key, value, nullable=spec["valueContainsNull"])
        case other:
            return _refuse_unsupported(str(other))


def _json_field(field: Mapping[str, Any]) -> pa.Field:
    try:
        return pa.field(field["name"], parse_json(field["type"]), nullable=field["nullable"])
    except TypeDeclarationError as error:
        raise TypeDeclarationError(f"column {field['name']!r}: {error}") from None


def _refuse_unsupported(name: str) -> NoReturn:
    advice = _UNSUPPORTED.get(name, "use one of Spark's column types")
    raise TypeDeclarationError(f"the type {name!r} cannot be used in a stream; {advice}")


class _Parser:
    """Recursive descent over the tokens of one DDL string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        self._next = 0
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place)
            kind = found.lastgroup if found else None
            if found is None or kind is None:
                blanks = len(text[place:]) - len(text[place:].lstrip())
                raise self._error("expected a name or a type", place + blanks)
            self._tokens.append((kind, found[kind], found.start(kind)))
            place = found.end()
        self._tokens.append(("end", "", len(text)))

    def whole(self) -> pa.Schema | pa.DataType:
        if self._is_columns():
            fields = self._columns()
            self._finish()
            return pa.schema(fields)
        return self.type_alone()

    def type_alone(self) -> pa.DataType:
        parsed = self._type()
        self._finish()
        return parsed

    def _is_columns(self) -> bool:
        kind, _, _ = self._tokens[0]
        after, word, _ = self._tokens[min(1, len(self._tokens) - 1)]
        if kind == "quoted":
            return True
        if kind != "word":
            return False
        return (after == "word" and word.lower() not in _TYPE_TAILS) or word == ":"

    def _columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._accept(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        kind, name, place = self._take()
        if kind not in ("word", "quoted") or not name:
            raise self._error("expected a column name", place)
        self._accept(":")
        column_type = self._type()
        nullable = True
        if self._accept("not"):
            self._expect("null")
            nullable = False
        if self._accept("comment"):
            kind, _, place = self._take()
            if kind != "text":
                raise self._error("expected the comment in quotes", place)
        return pa.field(name.replace("``", "`"), column_type, nullable=nullable)

    def _type(self) -> pa.DataType:
        kind, word, place = self._take()
        name = word.lower()
        if kind != "word":
            raise self._error("expected a type", place)
        if name in _UNSUPPORTED:
            _refuse_unsupported(name)
        match name:
            case "decimal" | "dec" | "numeric":
                return self._decimal(place)
            case "varchar" | "char" | "character":
                self._numbers(1)
                return pa.string()
            case "time":
                self._numbers(1)
                return DDL_TYPES[name]
            case "array":
                return self._array()
            case "map":
                return self._map()
            case "struct":
                return self._struct()
        if name in DDL_TYPES:
            return self._with_tail(name, place)
        raise self._error("unknown type", place)

    def _with_tail(self, name: str, place: int) -> pa.DataType:
        if name == "string" and self._accept("collate"):
            self._take()
        if name == "timestamp" and self._accept("without"):
            self._expect("time")
            self._expect("zone")
            return NAIVE_TIMESTAMP
        if self._tokens[self._next][1] in ("(", "<"):
            raise self._error(f"the type {name!r} takes no parameters", place)
        return DDL_TYPES[name]

    def _decimal(self, place: int) -> pa.DataType:
        precision, scale = 10, 0
        match self._numbers(2):
            case [digits]:
                precision = digits
            case [digits, fraction]:
                precision, scale = digits, fraction
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error("a decimal has 1 to 38 digits, and a scale within them", place)
        return pa.decimal128(precision, scale)

    def _numbers(self, most: int) -> list[int]:
        numbers: list[int] = []
        if not self._accept("("):
            return numbers
        while True:
            _, digits, place = self._take()
            if not digits.isdecimal():
                raise self._error("expected a number", place)
            numbers.append(int(digits))
            if len(numbers) == most or not self._accept(","):
                break
        self._expect(")")
        return numbers

    def _array(self) -> pa.DataType:
        self._expect("<")
        element = self._type()
        self._expect(">")
        return array_of(element, nullable=True)

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return map_of(key, value, nullable=True)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        if self._accept(">"):
            return pa.struct([])
        fields = self._columns()
        self._expect(">")
        return pa.struct(fields)

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _accept(self, wanted: str) -> bool:
        """Take the next token if it is this sign, or this word in any case."""
        kind, text, _ = self._tokens[self._next]
        if kind not in ("word", "sign") or text.lower() != wanted:
            return False
        self._take()
        return True

    def _expect(self, wanted: str) -> None:
        if not self._accept(wanted):
            raise self._error(f"expected {wanted.upper()!r}", self._tokens[self._next][2])

    def _finish(self) -> None:
        kind, _, place = self._tokens[self._next]
        if kind != "end":
            raise self._error("expected the end, or a comma and another column", place)

    def _error(self, problem: str, place: int) -> TypeDeclarationError:
        found = re.match(r"\w+|\S", self._text[place:])
        where = f"found {found[0]!r}" if found else "found the end"
        line = re.sub(r"\s", " ", self._text)
        return TypeDeclarationError(
            f"cannot read the type declaration: {problem}, {where} at character {place + 1}\n"
            f"    {line}\n    {' ' * place}^"
        )
