"""The content of `_metadata`, and how a bad file is told from another."""

from __future__ import annotations

import json

import msgspec
import pytest

from holdfast.checkpoint.files.metadata import (
    LONGEST_HEADER,
    SourceSnapshot,
    decode_header,
    decode_metadata,
    encode_metadata,
    handles_of,
    paths_of,
)
from holdfast.errors import CorruptCheckpointError
from holdfast.storage.handles import FileHandle, Handle, inline
from tests.support.checkpoints import checkpoint

FILES: dict[str, Handle] = {
    "000009.sst": FileHandle(path="shared/3-ab", size=70_000, checksum="0f" * 16),
    "CURRENT": inline(b"MANIFEST-000005\n\x00\xff"),
}
METADATA = checkpoint(7, FILES, fence=3)
ENCODED = encode_metadata(METADATA)


def test_metadata_comes_back_as_it_was_written():
    assert decode_metadata(ENCODED, "chk-7/_metadata") == METADATA


def test_the_file_is_two_json_documents():
    header, _, body = ENCODED.partition(b"\n")
    assert json.loads(header)["checkpoint_id"] == 7
    assert json.loads(body)["operators"][0]["subtasks"][0]["files"]["CURRENT"]["type"] == "inline"


def test_the_beginning_of_the_file_is_enough_to_order_it():
    header = decode_header(ENCODED[:LONGEST_HEADER], "chk-7/_metadata")
    assert (header.fence, header.checkpoint_id) == (3, 7)


def test_a_file_that_was_cut_off_anywhere_says_so():
    for length in range(len(ENCODED)):
        with pytest.raises(CorruptCheckpointError, match=r"chk-7/_metadata: .* cut off"):
            decode_metadata(ENCODED[:length], "chk-7/_metadata")


def test_one_flipped_bit_anywhere_is_found():
    for place in range(len(ENCODED)):
        damaged = bytearray(ENCODED)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptCheckpointError):
            decode_metadata(bytes(damaged), "chk-7/_metadata")


def test_a_damaged_body_is_called_damaged():
    damaged = ENCODED.replace(b'"job_name": "Job"', b'"job_name": "Jab"')
    with pytest.raises(CorruptCheckpointError, match=r"is damaged: .* checksum"):
        decode_metadata(damaged, "chk-7/_metadata")


def test_bytes_behind_the_end_are_refused():
    with pytest.raises(CorruptCheckpointError, match="5 bytes follow"):
        decode_metadata(ENCODED + b"extra", "chk-7/_metadata")


@pytest.mark.parametrize("content", [b"PAR1", b"{}", b'{"holdfast":"savepoint"}\n{}', b"\x00" * 99])
def test_a_file_of_something_else_is_called_foreign(content):
    with pytest.raises(CorruptCheckpointError, match="not a Holdfast checkpoint"):
        decode_metadata(content, "chk-7/_metadata")


def test_a_first_line_without_end_is_called_damaged():
    endless = ENCODED.partition(b"\n")[0].replace(b"0.1.0", b"9" * LONGEST_HEADER)
    with pytest.raises(CorruptCheckpointError, match="first line does not end"):
        decode_metadata(endless, "chk-7/_metadata")


@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_another_format_names_the_release_that_reads_it(number):
    other = f'{{"holdfast":"checkpoint","format":{number},"version":"4.5.6","else":1}}\nanything'
    with pytest.raises(
        CorruptCheckpointError, match=rf"format {number}, .* format 4, 5 only; Holdfast 4\.5\.6"
    ):
        decode_metadata(other.encode(), "chk-7/_metadata")


def test_a_first_line_that_speaks_of_another_checkpoint_is_refused():
    swapped = ENCODED.replace(b'"fence":3', b'"fence":4', 1)
    with pytest.raises(CorruptCheckpointError, match="different checkpoints"):
        decode_metadata(swapped, "chk-7/_metadata")


def test_fields_of_a_later_release_in_the_same_format_are_passed_over():
    class Later(msgspec.Struct):
        format: int
        version: str
        checkpoint_id: int
        fence: int
        properties: dict[str, str]
        job_id: str
        job_name: str
        job_attempt: str
        epoch: int
        batch_id: int
        triggered_ms: int
        completed_ms: int
        mode: str
        colour: str

    later = Later(5, "0.2.0", 7, 3, {}, "job", "Job", "i1", 1, 1, 1, 1, "EXACTLY_ONCE", "red")
    data = encode_metadata(later)  # type: ignore[arg-type]
    assert b"colour" in data
    assert decode_metadata(data, "chk-7/_metadata").version == "0.2.0"


def test_properties_that_speak_of_secrets_are_blanked_out():
    properties = {"s3.secret.key": "hunter2", "Db.Password": "hunter2", "region": "eu"}
    data = encode_metadata(msgspec.structs.replace(METADATA, properties=properties))
    assert b"hunter2" not in data
    assert decode_metadata(data, "x").properties["region"] == "eu"


def test_every_handle_is_named_with_its_owner():
    log = FileHandle(path="chk-7/log", size=1, checksum="")
    store = METADATA.operators[0].subtasks[0]
    with_state = msgspec.structs.replace(store, operator_state=inline(b"x"))
    operator = msgspec.structs.replace(METADATA.operators[0], subtasks=[with_state])
    source = SourceSnapshot(uid="events", position=None, logs={"files": [log]})
    metadata = msgspec.structs.replace(METADATA, operators=[operator], sources=[source])
    assert [what for what, _ in handles_of(metadata)] == [
        "file '000009.sst' of operator 'count', subtask 0",
        "file 'CURRENT' of operator 'count', subtask 0",
        "operator state of operator 'count', subtask 0",
        "log 'files' of source 'events'",
    ]
    assert paths_of(metadata) == {"shared/3-ab", "chk-7/log"}
