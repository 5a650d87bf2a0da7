"""State backends as values."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from holdfast.config.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, backend_named
from holdfast.errors import ConfigurationError


def test_backends_are_found_by_name():
    assert backend_named("hashmap") == HashMapStateBackend()
    assert backend_named("rocksdb") == EmbeddedRocksDBStateBackend()
    assert [backend_named(name).name for name in ("hashmap", "rocksdb")] == ["hashmap", "rocksdb"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"'heap'.*'hashmap', 'rocksdb'"):
        backend_named("heap")


def test_a_backend_travels_unchanged_and_cannot_be_changed():
    backend = EmbeddedRocksDBStateBackend(compression="lz4", bloom_bits_per_key=0)
    assert pickle.loads(pickle.dumps(backend)) == backend
    with pytest.raises(FrozenInstanceError):
        backend.compression = "none"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("block_cache_bytes", 1000),
        ("block_cache_bytes", True),
        ("bloom_bits_per_key", -1),
        ("bloom_bits_per_key", 2.5),
        ("compression", "gzip"),
    ],
)
def test_options_are_checked_when_they_are_given(option, value):
    with pytest.raises(ConfigurationError, match=option):
        EmbeddedRocksDBStateBackend(**{option: value})
