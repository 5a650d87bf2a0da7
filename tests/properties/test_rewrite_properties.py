"""Any keys, brought from any max parallelism to any other, are found with all their state."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.savepoints import rewrite_max_parallelism
from holdfast.serde.keys import canonical_key
from holdfast.state.timers.table import EVENT_TIMERS
from tests.support.in_memory import IN_MEMORY
from tests.support.offline_savepoints import (
    Operator,
    Restored,
    expected,
    expected_timers,
)
from tests.support.properties import searched

LONGS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "int": LONGS,
    "str": st.text(),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False),
    "bytes": st.binary(),
    "date": st.dates(),
    "datetime": TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    "datetime_ntz": TIMES,
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=3),
}


def keys_of(kind: str) -> st.SearchStrategy[Any]:
    if kind != "tuple":
        return SIMPLE[kind]
    return st.tuples(LONGS, st.none() | st.text(), st.none() | st.dates())


MANY = st.sampled_from([*SIMPLE, "tuple"]).flatmap(
    lambda kind: st.lists(
        keys_of(kind).map(canonical_key), max_size=30, unique_by=lambda key: (str(key), key)
    )
)
LIMITS = st.integers(1, 200) | st.just(32768)


@pytest.fixture(scope="module", autouse=True)
def _scratch_in_memory() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", IN_MEMORY)
        yield


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@searched(4, 15)
def test_every_key_is_found_with_its_owner_under_any_max_parallelism(backend, examples):
    @settings(max_examples=examples)
    @given(MANY, st.integers(1, 4), LIMITS, LIMITS, st.integers(1, 4), st.booleans())
    def check(keys, parallelism, old, new, later, canonical):
        keys = list(dict.fromkeys(keys))
        with TemporaryDirectory(dir=IN_MEMORY) as directory:
            root = Path(directory)
            operator = Operator(root, backend, min(parallelism, old), old)
            path = operator.savepoint(keys, canonical=canonical)
            written = rewrite_max_parallelism(path, str(root / "new"), new)
            restored = Restored(written, root / "restored", backend, min(later, new))
            assert restored.snapshot.max_parallelism == new
            assert restored.contents(keys) == {k: expected(n) for n, k in enumerate(keys)}
            assert restored.timers(EVENT_TIMERS) == expected_timers(keys)

    check()
