"""The form of `_metadata`, byte for byte.

`checkpoint_metadata_v1.txt` is the file of a checkpoint that uses every field. It never
changes: a new format gets a new number and a file of its own, and this one stays, to
show that checkpoints of format 1 are still read.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.handles import FileHandle, inline
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    OperatorSnapshot,
    SourceSnapshot,
    StoreSnapshot,
    decode_metadata,
    encode_metadata,
)

GOLDEN = Path(__file__).parent / "checkpoint_metadata_v1.txt"
SST = FileHandle(path="shared/41-5f0c", size=1_048_576, checksum="00112233445566778899aabbccddeeff")
LOG = FileHandle(path="chk-42/77aa", size=99_000, checksum="ffeeddccbbaa99887766554433221100")
METADATA = CheckpointMetadata(
    version="0.1.0",
    checkpoint_id=42,
    job_id="orders-2026",
    job_name="Orders, täglich",
    fence=3,
    incarnation="1f2e3d",
    epoch=1_234,
    batch_id=1_230,
    triggered_ms=1_794_700_000_123,
    completed_ms=1_794_700_001_456,
    mode="EXACTLY_ONCE",
    operators=[
        OperatorSnapshot(
            uid="count-by-user",
            name="Count",
            parallelism=2,
            max_parallelism=128,
            states=[{"name": "count", "kind": "value", "schema": [{"format": 1, "type": "int"}]}],
            key="str",
            subtasks=[
                StoreSnapshot(
                    subtask=0,
                    backend="rocksdb",
                    version="1234-17",
                    key_groups=(0, 63),
                    files={"000012.sst": SST, "CURRENT": inline(b"MANIFEST-000005\n")},
                    full_size=1_048_592,
                    uploaded_size=16,
                    operator_state=inline(bytes(range(0, 256, 15))),
                ),
                StoreSnapshot(
                    subtask=1,
                    backend="hashmap",
                    version="1234-18",
                    key_groups=None,
                    files={},
                    full_size=0,
                    uploaded_size=0,
                ),
            ],
        )
    ],
    sources=[
        SourceSnapshot(uid="orders", position={"offset": '{"logOffset":7}'}, logs={"files": [LOG]})
    ],
    spark={"offsets": ["v1", None, 1.5, True]},
    properties={"region": "eu"},
)


def test_the_bytes_of_a_checkpoint_are_those_of_format_1():
    assert encode_metadata(METADATA) == GOLDEN.read_bytes()


def test_a_checkpoint_of_format_1_can_be_read():
    assert decode_metadata(GOLDEN.read_bytes(), GOLDEN.name) == METADATA
