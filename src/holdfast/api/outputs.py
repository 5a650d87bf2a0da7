"""Side outputs, and policies for rows on which a function fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, overload

from holdfast.api.type_variables import T
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    import builtins


class FailedRow(NamedTuple):
    """A row on which user code raised, in the side output of an error policy."""

    row: Any
    key: Any
    error: str
    """Type and message of the exception."""
    traceback: str


class OutputTag(Generic[T]):
    """Names a side output. Yield `(tag, value)` to send `value` there.

    Args:
        tag_id: Name of the side output, unique within its operator.
        type: Type of its elements, in any form a stream's type may be declared in;
            without one, elements are pickled between tasks.
    """

    __slots__ = ("tag_id", "type")

    in_use: ClassVar[bool] = False
    """Whether this process has ever held a tag: only then can outputs be tagged."""

    @overload
    def __init__(self, tag_id: str, type: builtins.type[T]) -> None: ...

    @overload
    def __init__(self: OutputTag[Any], tag_id: str, type: Any = None) -> None: ...

    def __init__(self, tag_id: str, type: Any = None) -> None:
        """Check the name."""
        if not isinstance(tag_id, str) or not tag_id:
            raise JobGraphError(f"an OutputTag needs a non-empty string as its id, not {tag_id!r}")
        self.tag_id = tag_id
        self.type = type
        OutputTag.in_use = True

    def __reduce__(self) -> tuple[builtins.type[OutputTag[T]], tuple[str, Any]]:
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


@dataclass(frozen=True)
class ErrorPolicy:
    """How to treat a row on which user code raises.

    Unless the job fails, the outputs of the row and its changes to state are rolled back before the
    next row.
    """

    mode: str = "fail"
    tag: OutputTag | None = None

    @staticmethod
    def fail() -> ErrorPolicy:
        """The job fails. The default."""
        return ErrorPolicy()

    @staticmethod
    def skip() -> ErrorPolicy:
        """The row is dropped and counted, as `skipped` in the statistics."""
        return ErrorPolicy("skip")

    @staticmethod
    def side_output(tag: OutputTag) -> ErrorPolicy:
        """The row goes to a side output, as a `FailedRow`, and is counted."""
        return ErrorPolicy("side_output", tag)
