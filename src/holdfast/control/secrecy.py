"""Hides secrets in what is shown: values of settings, and credentials in texts."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN: Final = "******"
"""Stands for a secret, as in Flink."""

SENSITIVE: Final = (
    "password",
    "secret",
    "token",
    "key",
    "credential",
    "auth-params",
    "basic-auth",
    "jaas.config",
    "http-headers",
)
"""The value of a setting is hidden if its key contains one of these."""

_USER_INFO: Final = re.compile(rb'://[^/\s"\\]*@')
_PARAMETER: Final = re.compile(
    rb"((?:password|passwd|pwd|secret|token|credential|(?:access|api|account|private)[-_]?key)"
    rb'(?:%3D|=))[^&;,\s"\\]+',
    re.IGNORECASE,
)


def shown_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as texts, with the values of sensitive keys hidden."""
    return {
        str(key): HIDDEN if is_sensitive(str(key)) else shown_value(value)
        for key, value in settings.items()
    }


def is_sensitive(key: str) -> bool:
    """Whether the value of a setting must not be shown."""
    return any(word in key.lower() for word in SENSITIVE)


def shown_value(value: object) -> str:
    """A value as a text, as it would be written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(map(shown_value, value))
    return value.name if isinstance(value, Enum) else str(value)


def without_credentials(json: bytes) -> bytes:
    """JSON whose texts show neither user information in URLs nor passwords in parameters."""
    hidden = HIDDEN.encode()
    return _PARAMETER.sub(rb"\1" + hidden, _USER_INFO.sub(b"://" + hidden + b"@", json))
