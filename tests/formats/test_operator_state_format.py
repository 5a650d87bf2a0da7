"""The file of a subtask's operator state, byte for byte.

`operator_state_v1.json` never changes: a new format gets a new number and a file of its
own, and this one stays, to show that files of format 1 are still read.
"""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import HashMapStateBackend, ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.operator.layout import SUBTASK_PREFIX
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.store.opening import open_store

GOLDEN = json.loads((Path(__file__).parent / "operator_state_v1.json").read_text())


def run_program(backend: OperatorStateBackend) -> None:
    """What the golden file was made of."""
    backend.get_list_state(ListStateDescriptor("split", int)).add_all([1, 300, -1])
    backend.get_union_list_state(ListStateDescriptor("union", list[str])).add(["a", "ü"])
    broadcast = backend.get_broadcast_state(MapStateDescriptor("broadcast", str, float))
    broadcast.put_all({"one": 1.5, "": None})
    broadcast.put(None, -0.0)
    backend.get_list_state(ListStateDescriptor("empty", bytes))
    backend.set_raw_partitions([b"first", b"", b"\x00\xff"])
    backend.set_raw_key_groups({127: b"last", 0: b"zero"})


def test_the_bytes_of_operator_state_are_those_of_format_1(tmp_path: Path) -> None:
    store = open_store(HashMapStateBackend(), tmp_path / "store", None)
    backend = OperatorStateBackend(store)
    run_program(backend)
    backend.flush()
    exported = backend.export()
    assert exported is not None
    found = [[key.hex(), value.hex()] for key, value in store.scan(SUBTASK_PREFIX)]
    store.abort()
    assert exported.encode().hex() == GOLDEN["file"]
    assert found == GOLDEN["store"]


def test_operator_state_of_format_1_can_be_read(tmp_path: Path) -> None:
    store = open_store(HashMapStateBackend(), tmp_path / "store", None)
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in GOLDEN["store"]])
    backend = OperatorStateBackend(store)
    exported = OperatorStateSnapshot.decode(bytes.fromhex(GOLDEN["file"]))
    assert backend.export() == exported
    assert backend.get_list_state(ListStateDescriptor("split", int)).get() == [1, 300, -1]
    union = backend.get_union_list_state(ListStateDescriptor("union", list[str]))
    assert union.get() == [["a", "ü"]]
    broadcast = backend.get_broadcast_state(MapStateDescriptor("broadcast", str, float))
    assert dict(broadcast.items()) == {"one": 1.5, "": None, None: 0.0}
    assert backend.get_list_state(ListStateDescriptor("empty", bytes)).get() == []
    assert backend.raw_partitions() == [b"first", b"", b"\x00\xff"]
    assert backend.raw_key_groups() == {0: b"zero", 127: b"last"}
    store.abort()
