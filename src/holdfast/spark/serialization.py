"""Pickles programs for workers, with errors that name the part at fault.

Stages are shipped once per job attempt if they are large, and not with every epoch.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
import types
import typing
from contextlib import suppress
from inspect import get_annotations
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash
from msgspec._core import Factory  # type: ignore[import-not-found]

from holdfast.errors import NotSerializableError
from holdfast.runtime.worker import JobRun
from holdfast.spark.versions import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext
    from pyspark.core.broadcast import Broadcast

    from holdfast.job.model import JobIdentity
    from holdfast.runtime.plan import StagePlan
    from holdfast.state.store.process import ProcessIdentity


BROADCAST_FROM: Final = 64 * 1024
"""Size in bytes from which a stage is shipped once per job attempt."""


def dump_stage(stage: StagePlan) -> bytes:
    """Pickle a stage for its tasks; functions of `__main__` and notebooks by value."""
    resolve_main()
    try:
        return dumps(stage)
    except Exception as error:
        for operator in stage.operators:
            parts = [("function", operator.function)]
            if operator.key is not None:
                parts.append(("key function", operator.key.selector))
            for what, part in parts:
                _check(part, what, f"operator {operator.name!r} (uid {operator.uid!r})")
        raise NotSerializableError(
            f"stage {stage.index} of the job cannot be pickled: {error}"
        ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class ShippedStage:
    """A pickled stage, as the tasks of all epochs get it."""

    job: JobRun
    job_attempt: str
    digest: str
    """Tells stages apart."""
    kept_memory: int
    """See `StagePlan.kept_memory`."""
    _content: bytes | Broadcast[bytes]

    def pickled(self) -> bytes:
        """The `StagePlan`, pickled."""
        content = self._content
        return content if isinstance(content, bytes) else content.value


class StageShipping:
    """Ships the stages of one job attempt."""

    def __init__(self, context: SparkContext, job: JobIdentity, owner: ProcessIdentity) -> None:
        """Ship stages to the workers of `context`."""
        self._context = context
        self._attempt = job.job_attempt
        self._job = JobRun(job.local_dir, job.job_id, owner)
        self._broadcasts: list[Broadcast[bytes]] = []

    def ship(self, stage: StagePlan) -> ShippedStage:
        """Pickle a stage, functions of `__main__` and notebooks by value."""
        pickled = dump_stage(stage)
        content: bytes | Broadcast[bytes] = pickled
        if len(pickled) >= BROADCAST_FROM:
            content = self._context.broadcast(pickled)
            self._broadcasts.append(content)
        digest = xxhash.xxh3_128_hexdigest(pickled)
        return ShippedStage(self._job, self._attempt, digest, stage.kept_memory, content)

    def close(self) -> None:
        """Free what was shipped; no task follows."""
        for broadcast in self._broadcasts:
            broadcast.destroy()
        self._broadcasts.clear()


def dump_function(part: object, what: str) -> bytes:
    """Pickle any object for workers; `what` names it in errors."""
    resolve_main()
    try:
        return dumps(part)
    except Exception as error:
        raise _refusal(what, error) from error


class ShippedByValue:
    """Base of objects that Spark pickles itself: parts of the program in them go by value."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The class, and its pickled attributes."""
        return _unpacked, (type(self), dump_function(vars(self), f"a {type(self).__name__}"))


def _unpacked(cls: type, attributes: bytes) -> object:
    made: object = object.__new__(cls)
    vars(made).update(pickle.loads(attributes))
    return made


def resolve_main() -> None:
    """Resolve postponed annotations in the classes of the program."""
    resolve_annotations(vars(sys.modules["__main__"]).values())


def resolve_annotations(objects: Iterable[object]) -> None:
    """Resolve postponed annotations, which are strings, in the classes among `objects`.

    Classes of `__main__` go to workers by value, and workers cannot look up the names in a
    postponed annotation: they have another `__main__`.
    """
    for cls in list(objects):
        own = vars(cls).get("__annotations__") if isinstance(cls, type) else None
        if not own or cls.__module__ != "__main__":
            continue
        # NamedTuple and TypedDict turn the strings into references.
        if any(isinstance(hint, str | typing.ForwardRef) for hint in own.values()):
            # Names that cannot be resolved here are reported on use.
            with suppress(Exception):
                hints = typing.get_type_hints(cls, include_extras=True)
                own.update({name: hints[name] for name in own})


def _check(part: object, what: str, operator: str) -> None:
    try:
        dumps(part)
    except Exception as error:
        raise _refusal(f"the {what} of {operator}", error) from error


def _refusal(what: str, error: Exception) -> NotSerializableError:
    return NotSerializableError(
        f"{what} cannot be shipped to workers: {type(error).__name__}: {error}. It holds "
        "something that exists in this process only, such as a connection, a lock or a "
        "SparkSession; make that in open() instead, or hand over what it is made from"
    )


_CACHE: Final = "__msgspec_cache__"
_POST_INIT: Final = "__post_init__"
_CONFIG: Final = (
    "array_like", "cache_hash", "dict", "eq", "forbid_unknown_fields", "frozen", "gc",
    "omit_defaults", "order", "repr_omit_defaults", "weakref",
)  # fmt: skip
"""Settings of a Struct to pass to its class again."""
_StructMeta: Final[Any] = type(msgspec.Struct)


def dumps(value: object) -> bytes:
    """Pickle a value; classes and functions of `__main__` and of notebooks by value."""
    with BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if obj is dataclasses.MISSING:
            return "MISSING"
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            attributes: dict[str, Any] = reduced[2][0]
            attributes.pop(_CACHE, None)
            if isinstance(obj, _StructMeta):
                return _struct_reduced(obj, *reduced)
        return reduced


def _struct_reduced(
    cls: Any, make: object, args: tuple[Any, ...], state: Any, *rest: object
) -> tuple[Any, ...]:
    """Pickles a Struct class with its fields, based on the result of cloudpickle."""
    metaclass, name, bases, namespace, tracker_id, _ = args
    exchange_names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    own = [field for field in get_annotations(cls) if field in exchange_names]
    settings = cls.__struct_config__
    config = {setting: getattr(settings, setting) for setting in _CONFIG}
    config |= {
        "tag": False if settings.tag is None else settings.tag,
        "tag_field": settings.tag_field,
        "rename": {field: exchange_names[field] for field in own},
        "kw_only": any(_is_keyword_only(cls, field) for field in own),
    }
    state[0].pop("__slots__", None)
    late_init = _POST_INIT in vars(cls)
    made = (metaclass, name, bases, namespace, own, *_defaults(cls, own), config, late_init)
    return _make_struct, (*made, tracker_id), state, *rest


def _defaults(cls: Any, own: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Defaults and default factories of the fields of a Struct."""
    defaults = cls.__struct_defaults__
    pairs = zip(cls.__struct_fields__[-len(defaults) :], defaults, strict=True) if defaults else ()
    found = {name: one for name, one in pairs if name in own and one is not msgspec.NODEFAULT}
    made = {name: one.factory for name, one in found.items() if isinstance(one, Factory)}
    return {name: one for name, one in found.items() if name not in made}, made


def _is_keyword_only(cls: Any, field: str) -> bool:
    parameter = cls.__signature__.parameters[field]
    return bool(parameter.kind is parameter.KEYWORD_ONLY)


def _make_struct(
    metaclass: Any,
    name: str,
    bases: tuple[Any, ...],
    namespace: dict[str, Any],
    fields: list[str],
    defaults: dict[str, Any],
    factories: dict[str, Any],
    config: dict[str, Any],
    late_init: bool,
    tracker_id: str,
) -> Any:
    """A Struct class with its fields; types and methods are filled in later."""
    body = namespace | defaults | {"__annotations__": dict.fromkeys(fields, Any)}
    body |= {field: msgspec.field(default_factory=make) for field, make in factories.items()}
    if late_init:
        body[_POST_INIT] = _call_post_init
    keywords = {"metaclass": metaclass, **config}
    cls = types.new_class(name, bases, keywords, lambda made: made.update(body))
    return cloudpickle._lookup_class_or_track(tracker_id, cls)  # type: ignore[no-untyped-call]


def _call_post_init(self: Any) -> None:
    """Stands for a method that the class needs when it is made, and gets later."""
    type(self).__post_init__(self)
