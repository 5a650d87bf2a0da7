"""Side outputs: further streams out of one operator, told apart by tags."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.errors import JobGraphError


class OutputTag:
    """Names a side output. Yield `(tag, value)` to send `value` there.

    Args:
        tag_id: Name of the side output, unique within its operator.
        type: Type of its elements, in any form a stream's type may be declared in;
            without one, elements are pickled between tasks.
    """

    __slots__ = ("tag_id", "type")

    in_use: ClassVar[bool] = False
    """Whether this process has ever held a tag: only then can outputs be tagged."""

    def __init__(self, tag_id: str, type: Any = None) -> None:
        """Refuse an empty name."""
        if not isinstance(tag_id, str) or not tag_id:
            raise JobGraphError(f"an OutputTag needs a non-empty string as its id, not {tag_id!r}")
        self.tag_id = tag_id
        self.type = type
        OutputTag.in_use = True

    def __reduce__(self) -> tuple[type[OutputTag], tuple[str, Any]]:
        """Unpickle through the constructor, so that `in_use` is set."""
        return OutputTag, (self.tag_id, self.type)

    def __eq__(self, other: object) -> bool:
        """Tags are equal when their ids are."""
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        """Hash of the id."""
        return hash(self.tag_id)

    def __repr__(self) -> str:
        """`OutputTag('late')`."""
        return f"OutputTag({self.tag_id!r})"
