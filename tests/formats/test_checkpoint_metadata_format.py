"""The form of `_metadata`, byte for byte.

`checkpoint_metadata_v5.txt` is the file of a checkpoint that uses every field. It never changes:
a new format gets a new number and a new file, and the older ones stay, to show that their
formats can still be read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.checkpoint.files.metadata import (
    ChannelState,
    CheckpointMetadata,
    Committable,
    OperatorSnapshot,
    SourceSnapshot,
    StagedHandle,
    StoredEventTimes,
    StoreSnapshot,
    decode_metadata,
    encode_metadata,
)
from holdfast.storage.handles import FileHandle, inline

GOLDEN = Path(__file__).parent / "checkpoint_metadata_v5.txt"
GOLDEN_4 = Path(__file__).parent / "checkpoint_metadata_v4.txt"
STAGED = FileHandle(
    path="staged/1f2e3d-1234-0-17-rows~0a1b2c3d4e5f",
    size=70_000,
    checksum="0123456789abcdef0123456789abcdef",
)
SST = FileHandle(path="shared/41-5f0c", size=1_048_576, checksum="00112233445566778899aabbccddeeff")
LOG = FileHandle(path="chk-42/77aa", size=99_000, checksum="ffeeddccbbaa99887766554433221100")
METADATA = CheckpointMetadata(
    version="0.1.0",
    checkpoint_id=42,
    job_id="orders-2026",
    job_name="Orders, täglich",
    lineage="c0ffee",
    fence=3,
    job_attempt="1f2e3d",
    epoch=1_234,
    batch_id=1_230,
    triggered_ms=1_794_700_000_123,
    completed_ms=1_794_700_001_456,
    mode="EXACTLY_ONCE",
    origin="invoices-7-1794600000000",
    operators=[
        OperatorSnapshot(
            uid="count-by-user",
            name="Count",
            made_at="/app/orders.py:12",
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
                    operator_tables={"operator/seen": LOG},
                ),
            ],
        )
    ],
    sources=[
        SourceSnapshot(
            uid="orders",
            name="Orders",
            made_at="/app/orders.py:9",
            position={"offset": '{"logOffset":7}'},
            logs={"files": [LOG]},
        )
    ],
    committables=[
        Committable(
            uid="files", checkpoint_id=41, epoch=1_230, subtask=0, data=b'{"path":"part-1"}'
        ),
        Committable(
            uid="orders-table",
            checkpoint_id=42,
            epoch=1_234,
            subtask=1,
            attempt=18,
            rows=StagedHandle(handle=STAGED, rows=1_000),
        ),
    ],
    stale_notes=["opened/1f2e3d-1230-0-16"],
    channel_state=[
        ChannelState(
            uid="count-by-user",
            input=0,
            subtask=1,
            parallelism=2,
            max_parallelism=128,
            rows=StagedHandle(handle=inline(b"\x01\x02\x03"), rows=3),
        )
    ],
    event_times=StoredEventTimes(
        sources={"times": 1_794_699_999_000, "quiet": -(2**63)},
        quiet_ms={"quiet": 1_500},
        operators={"count-by-user": 1_794_699_998_500},
    ),
    spark={"offsets": ["v1", None, 1.5, True]},
    properties={"region": "eu"},
)


def test_the_bytes_of_a_checkpoint_are_those_of_format_5():
    assert encode_metadata(METADATA) == GOLDEN.read_bytes()


def test_a_checkpoint_of_format_5_can_be_read():
    assert decode_metadata(GOLDEN.read_bytes(), GOLDEN.name) == METADATA


def test_a_checkpoint_of_format_4_can_be_read_and_has_no_event_times():
    [operator], [source] = METADATA.operators, METADATA.sources
    assert decode_metadata(GOLDEN_4.read_bytes(), GOLDEN_4.name) == msgspec.structs.replace(
        METADATA,
        format=4,
        operators=[msgspec.structs.replace(operator, made_at="")],
        sources=[msgspec.structs.replace(source, name="", made_at="")],
        event_times=StoredEventTimes(),
    )
