"""The type of an operator's output: declared, or read from a return annotation."""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any

from holdfast.api.outputs import OutputTag
from holdfast.errors import TypeDeclarationError
from holdfast.types.annotations import Annotation, origin_of, unwrapped
from holdfast.types.stream_type import UNDECLARED, StreamType

if TYPE_CHECKING:
    from collections.abc import Callable


def output_type_of(call: Callable[..., Any], declared: object, *, per_element: bool) -> StreamType:
    """The declared type, else what the annotation of `call` says, else pickled objects."""
    if declared is not None:
        return StreamType.of(declared)
    return declared_output(call, per_element=per_element) or UNDECLARED


def declared_output(fn: Callable[..., Any], *, per_element: bool) -> StreamType | None:
    """Stream type a function's return annotation declares, or None.

    None also stands for an annotation that has no columnar form or names something
    that does not exist at run time: an annotation describes, it does not oblige.

    Args:
        fn: Function, method, `functools.partial`, class, or object with `__call__`.
        per_element: The function returns one element, as for `map`. Otherwise it
            returns or yields many, and the annotation's item counts; a member
            `tuple[OutputTag, X]` of a union there is a side output and is left out.
    """
    annotation = return_annotation(fn)
    if not per_element:
        annotation = _main_output(_item(annotation))
    if annotation in (None, type(None), inspect.Signature.empty, Any, object):
        return None
    try:
        return StreamType.of(annotation)
    except TypeDeclarationError:
        return None


def return_annotation(fn: Callable[..., Any]) -> Annotation:
    """What a function says that it returns; None if nothing, or nothing that can be found."""
    if isinstance(fn, functools.partial):
        return return_annotation(fn.func)
    if isinstance(fn, type):
        return fn
    if not isinstance(fn, types.FunctionType | types.MethodType):
        fn = getattr(fn, "__call__", fn)  # noqa: B004
    annotation = getattr(fn, "__annotations__", {}).get("return")
    return _resolved(annotation, fn) if isinstance(annotation, str) else annotation


def _resolved(annotation: str, fn: Callable[..., Any]) -> Annotation:
    inner = inspect.unwrap(fn)
    # Names imported for type checkers only are mostly these, so offer them.
    scope = vars(builtins) | vars(typing) | vars(collections.abc) | {"OutputTag": OutputTag}
    scope |= getattr(inner, "__globals__", {}) | _closure(inner)
    try:
        return eval(annotation, scope)
    except Exception:
        return None


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    code = getattr(fn, "__code__", None)
    cells = getattr(fn, "__closure__", None) or ()
    filled = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            filled[name] = cell.cell_contents
        except ValueError:
            continue
    return filled


def _item(annotation: Annotation) -> Annotation:
    core, _ = unwrapped(annotation)
    origin = origin_of(core)
    arguments = typing.get_args(core)
    iterable = isinstance(origin, type) and issubclass(origin, collections.abc.Iterable)
    if not iterable or not arguments or issubclass(origin, collections.abc.Mapping):
        return None
    if origin is tuple and arguments[1:] != (...,):
        return None
    return arguments[0]


def _main_output(annotation: Annotation) -> Annotation:
    if origin_of(annotation) not in (typing.Union, types.UnionType):
        return None if _is_tagged(annotation) else annotation
    kept = [member for member in typing.get_args(annotation) if not _is_tagged(member)]
    return functools.reduce(lambda left, right: left | right, kept) if kept else None


def _is_tagged(annotation: Annotation) -> bool:
    arguments = typing.get_args(annotation)
    first = arguments[0] if arguments else None
    return origin_of(annotation) is tuple and OutputTag in (first, origin_of(first))
