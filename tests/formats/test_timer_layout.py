"""The layout of timers in the local store, byte for byte.

`timer_layout_v1.json` holds every entry that a small program leaves behind, for keys of
every type. Like `store_layout_v1.json`, of whose version 1 it is a part, it never changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.serde.keys import key_bytes, key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from tests.formats.test_store_layout import BACKENDS, KEY_TYPES, KEYS, MAX_PARALLELISM

if TYPE_CHECKING:
    from holdfast.config.backends import StateBackend

GOLDEN = json.loads((Path(__file__).parent / "timer_layout_v1.json").read_text())
TIMES = [-(2**63), -1, 0, 1_794_000_000_000, 2**63 - 1]
WINDOW = b"window " * 20


def opened(backend: StateBackend, directory: Path, epoch: int) -> tuple[CurrentKey, Any]:
    """Keyed state for one epoch."""
    current = CurrentKey()
    store = open_store(backend, directory, None if epoch == 1 else f"{epoch - 1}-golden")
    return current, KeyedStateBackend(
        store, max_parallelism=MAX_PARALLELISM, epoch=epoch, current=current
    )


def run_program(backend: StateBackend, directory: Path, keys: list[Any]) -> None:
    """Two epochs: what the golden file was made of."""
    current, state = opened(backend, directory, 1)
    event, processing = state.timers(EVENT_TIMERS), state.timers(PROCESSING_TIMERS)
    for current.key in keys:
        for time in TIMES:
            event.register(time)
        event.register(5, b"w")
        event.register(6, WINDOW)
        processing.register(7)
    state.commit("1-golden")
    current, state = opened(backend, directory, 2)
    assert sum(1 for _ in state.timers(EVENT_TIMERS).due(-1)) == 2 * len(keys)
    assert sum(1 for _ in state.timers(PROCESSING_TIMERS).due(7)) == len(keys)
    state.commit("2-golden")


@BACKENDS
@KEY_TYPES
def test_the_bytes_of_timers_are_those_of_version_1(
    backend: StateBackend, key_type: str, tmp_path: Path
) -> None:
    run_program(backend, tmp_path / "store", KEYS[key_type])
    store = open_store(backend, tmp_path / "store", "2-golden")
    found = [[key.hex(), value.hex()] for key, value in store.scan(b"")]
    store.abort()
    assert found == GOLDEN["stores"][key_type]


@BACKENDS
@KEY_TYPES
def test_timers_of_version_1_can_be_read(
    backend: StateBackend, key_type: str, tmp_path: Path
) -> None:
    store = open_store(backend, tmp_path / "store", None)
    entries = GOLDEN["stores"][key_type]
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in entries])
    store.commit("2-golden")
    _, state = opened(backend, tmp_path / "store", 3)
    assert state.timers(EVENT_TIMERS).next_time == 0
    assert state.timers(PROCESSING_TIMERS).next_time is None
    given = [
        (timer.time, key_bytes(timer.key), timer.namespace)
        for timer in state.timers(EVENT_TIMERS).due(2**63 - 1)
    ]
    expected = [(0, b""), (5, b"w"), (6, WINDOW), *((time, b"") for time in TIMES[3:])]
    assert sorted(given) == sorted(
        (time, key_bytes(key), namespace) for time, namespace in expected for key in KEYS[key_type]
    )
    state.abort()


def test_an_entry_is_state_group_time_key_and_namespace() -> None:
    entries = dict(GOLDEN["stores"]["str"])
    group = key_group_of("a", MAX_PARALLELISM).to_bytes(2, "big")
    at_five = b"\x00\x01" + group + b"\x80" + bytes(6) + b"\x05" + b"\x01a"
    assert entries[(at_five + b"\x01w").hex()] == ""
    at_six = at_five[:11] + b"\x06" + at_five[12:]
    assert entries[(at_six + b"\x8c\x01" + WINDOW).hex()] == ""
    assert entries[b"\x00\x00timerstimers:event".hex()] == "80" + "00" * 7
    assert entries[b"\x00\x00timerstimers:processing".hex()] == ""
