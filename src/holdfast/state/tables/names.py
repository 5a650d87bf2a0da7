"""Names of files and directories in a savepoint, from names of states and operators."""

from __future__ import annotations

import re
from typing import Final

from holdfast.state.store.directories import file_name

_LONGEST: Final = 80
_WORDS: Final = re.compile(r"[a-z0-9_-]+( [a-z0-9_-]+)+")


def table_name(name: str) -> str:
    """File name of a state or an operator; different ones differ, even ignoring case.

    Lower-case words stay as they are, with single spaces between them. All file systems and
    object stores keep such names. Other names get those of `file_name`, which have no spaces.
    Letters beyond ASCII do not stay: a copy may write them in another normal form, and then the
    savepoint would not find its files.

    Example:
        >>> table_name("counts by word"), table_name("counts")
        ('counts by word', 'counts')
        >>> table_name(" counts").rpartition("~")[0]
        '_counts'
    """
    return name if len(name) <= _LONGEST and _WORDS.fullmatch(name) else file_name(name)
