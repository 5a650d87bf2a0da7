"""Codecs of Python types, using msgspec's MessagePack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateValueError
from holdfast.serde.codec import Codec, Decode, Encode
from holdfast.serde.exact import (
    advice_for,
    compiled,
    compiled_extended,
    is_limited,
    mismatch_in,
    tree,
)
from holdfast.serde.extended import MARK, extended_decoded, extended_encoded
from holdfast.serde.reading import typed_reading
from holdfast.types.mismatch import ValueMismatch, shortened, shown
from holdfast.types.schema import (
    defaults,
    is_canonical,
    is_immutable,
    name_of,
    own_classes,
    schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, NoReturn

    import msgspec.inspect as mi

    from holdfast.serde.exact import Check

    Order = Literal["deterministic"] | None


def python_codec(spec: Any) -> Codec:
    """Codec of a Python type.

    Raises:
        StateDescriptorError: State cannot hold the type; the message says why.
    """
    root = tree(spec)
    immutable = is_immutable(root)
    # Sets are unordered, and equal keys must have equal bytes.
    order: Order = "deterministic" if immutable else None
    schema = schema_of(root)
    encode = _encoder(
        compiled(root), msgspec.msgpack.Encoder(order=order).encode, _rescuer(root, order)
    )
    decode = _decoder(msgspec.msgpack.Decoder(spec).decode, spec, name_of(root))
    classes = own_classes(root)
    return Codec(
        encode=_verified(encode, decode) if is_limited(root) else encode,
        decode=decode,
        check=class_check(classes, name_of(root)),
        schema=schema,
        exact_type=next(iter(classes)) if len(classes) == 1 else None,
        immutable=immutable,
        canonical=is_canonical(root),
        reading=lambda stored: typed_reading(stored, schema, spec, defaults(root), decode),
    )


def class_check(classes: frozenset[type], declared: str) -> Callable[[Any], None]:
    """Function that refuses values of other classes."""
    if len(classes) == 1:
        (cls,) = classes

        def check_one(value: Any) -> None:
            if type(value) is not cls:
                refuse(declared, value)

        return check_one

    def check_any(value: Any) -> None:
        if type(value) not in classes:
            refuse(declared, value)

    return check_any


def refuse(declared: str, value: Any, advice: str = "") -> NoReturn:
    """Refuse a value that is not of the declared type.

    Raises:
        StateValueError: Always.
    """
    raise refusal(declared, ValueMismatch(0, value, advice or advice_for(declared, value)))


def refusal(declared: str, mismatch: ValueMismatch) -> StateValueError:
    """The error for a value that a state of the declared type cannot hold."""
    where = f" at {mismatch.path}, which is declared {mismatch.declared}" if mismatch.path else ""
    return StateValueError(
        f"a state declared {declared} cannot hold {shown(mismatch.value)}{where}; {mismatch.reason}"
    )


def _encoder(check: Check, raw: Encode, rescue: Encode) -> Encode:
    if check.classes and len(check.classes) == 1:
        (cls,) = check.classes

        def encode_scalar(value: Any) -> bytes:
            if type(value) is cls:
                try:
                    return raw(value)
                except (OverflowError, UnicodeEncodeError):
                    pass
            return rescue(value)

        return encode_scalar
    fits = check.fits

    def encode(value: Any) -> bytes:
        if fits(value):
            try:
                return raw(value)
            except (OverflowError, UnicodeEncodeError):
                pass
        return rescue(value)

    return encode


def _rescuer(root: mi.Type, order: Order) -> Encode:
    fits = compiled_extended(root).fits
    declared = name_of(root)

    def rescue(value: Any) -> bytes:
        if not fits(value):
            raise refusal(declared, mismatch_in(root, value))
        try:
            return extended_encoded(value, order)
        except UnicodeEncodeError as error:
            advice = f"it is not valid Unicode text ({error.reason}); declare bytes and encode it"
            refuse(declared, value, advice)

    return rescue


def _decoder(native: Decode, spec: Any, declared: str) -> Decode:
    def decode(data: bytes) -> Any:
        try:
            return native(data)
        except msgspec.DecodeError as error:
            problem: Exception = error
        try:
            if data[:1] == MARK:
                return extended_decoded(data, spec)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
            problem = error
        raise StateValueError(
            f"the stored bytes are not of the declared type {declared}: {problem}. If they were "
            "written with another type, declare that one, or start without the state. If not, the "
            "bytes are damaged: with checkpoints, the job continues from the newest one"
        ) from problem

    return decode


def _verified(encode: Encode, decode: Decode) -> Encode:
    def encode_verified(value: Any) -> bytes:
        data = encode(value)
        try:
            decode(data)
        except StateValueError as error:
            raise StateValueError(
                f"{shortened(value)} breaks a limit of its declared type: {error.__cause__}"
            ) from None
        return data

    return encode_verified
