from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from keytide.errors import DataError, UnsupportedError
from keytide.format.index_files import (
    DELETION_VECTORS,
    HASH,
    IndexFile,
    VectorRange,
    decode_index_manifest,
    encode_index_manifest,
    read_vectors,
    replace_index_files,
)

DATA = Path(__file__).parents[1] / "data"
GOLDEN = json.loads((DATA / "golden.json").read_text())
CHAINS = {
    n: c["index_manifest"] for n, c in GOLDEN["avro_records"].items() if "index_manifest" in c
}
SAMPLES = sorted(DATA.glob("samples/**/manifest/index-manifest-*"))

VECTORS = IndexFile(
    DELETION_VECTORS,
    bytes(12),
    3,
    "index-1",
    31,
    2,
    (VectorRange("data-1", 1, 22, 1), VectorRange("data-2", 31, 19)),
    "s3://bucket/index-1",
)
HASHES = IndexFile(HASH, b"p", 0, "index-2", 8, 2)
GLOBAL = IndexFile(
    "BTREE",
    bytes(12),
    0,
    "index-3",
    100,
    5,
    global_index={
        "_ROW_RANGE_START": 0,
        "_ROW_RANGE_END": 99,
        "_INDEX_FIELD_ID": 4,
        "_EXTRA_FIELD_IDS": [5, 6],
        "_INDEX_META": b"meta",
        "_SOURCE_META": None,
    },
)


def named(file: IndexFile, name: str, **members: Any) -> IndexFile:
    return replace(file, file_name=name, **members)


@pytest.mark.parametrize(
    "files", [[], [VECTORS], [VECTORS, HASHES, GLOBAL], [replace(VECTORS, ranges=(), row_count=0)]]
)
def test_index_manifest_keeps_every_member(files: list[IndexFile]) -> None:
    assert decode_index_manifest(encode_index_manifest(files), "index-manifest-1") == files


def test_new_file_takes_the_place_of_the_one_with_its_key() -> None:
    other_bucket = named(VECTORS, "b", bucket=4)
    other_partition = named(VECTORS, "p", partition=b"p")
    files = [VECTORS, other_bucket, other_partition, HASHES]
    new = named(VECTORS, "new")
    replaced = replace_index_files(files, [new])
    assert [file.file_name for file in replaced] == ["b", "p", "index-2", "new"]


def test_files_of_unknown_types_are_carried_on() -> None:
    second = named(GLOBAL, "index-4")
    assert replace_index_files([GLOBAL, second], [HASHES]) == [GLOBAL, second, HASHES]


def test_unknown_members_of_a_global_index_are_refused_rather_than_lost() -> None:
    future = replace(GLOBAL, global_index={**(GLOBAL.global_index or {}), "_FUTURE": 1})
    with pytest.raises(UnsupportedError, match=r"index-3 of type BTREE .* _FUTURE"):
        encode_index_manifest([future])


def test_written_schema_is_read_by_strict_readers() -> None:
    schema = fastavro.reader(io.BytesIO(encode_index_manifest([VECTORS]))).writer_schema
    assert schema["name"] == "org.apache.paimon.avro.generated.record"
    unions = [field["type"] for field in schema["fields"] if isinstance(field["type"], list)]
    assert len(unions) == 3
    assert all(union[0] == "null" for union in unions)


@pytest.mark.parametrize("length", [0, 3, 200, -1])
def test_torn_index_manifest_names_its_path(length: int) -> None:
    data = encode_index_manifest([VECTORS, HASHES])
    with pytest.raises(DataError, match="index-manifest-1: not a complete Avro file"):
        decode_index_manifest(data[:length], "index-manifest-1")


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ({"_VERSION": 2, "_KIND": 0}, UnsupportedError, "index-manifest-1: record version 2"),
        ({"_VERSION": 1, "_KIND": 0}, DataError, "index-manifest-1: missing or invalid member"),
    ],
)
def test_unreadable_record_names_the_path(
    record: dict[str, int], error: type[Exception], message: str
) -> None:
    members = [{"name": name, "type": "int"} for name in record]
    buffer = io.BytesIO()
    fastavro.writer(buffer, {"type": "record", "name": "r", "fields": members}, [record])
    with pytest.raises(error, match=message):
        decode_index_manifest(buffer.getvalue(), "index-manifest-1")


def test_deletion_in_an_index_manifest_names_the_path() -> None:
    reader = fastavro.reader(io.BytesIO(encode_index_manifest([VECTORS])))
    records = [{**found, "_KIND": 1} for found in reader if isinstance(found, dict)]
    buffer = io.BytesIO()
    assert isinstance(reader.writer_schema, dict)
    fastavro.writer(buffer, reader.writer_schema, records)
    with pytest.raises(DataError, match=r"index-manifest-1: .* must not have"):
        decode_index_manifest(buffer.getvalue(), "index-manifest-1")


@pytest.mark.parametrize("name", CHAINS)
def test_golden_index_manifest_is_decoded(name: str) -> None:
    golden = CHAINS[name]
    files = decode_index_manifest(base64.b64decode(golden["file_base64"]), name)
    assert files == [golden_index_file(record) for record in golden["records"]]
    assert decode_index_manifest(encode_index_manifest(files), name) == files


def golden_index_file(record: dict[str, Any]) -> IndexFile:
    places = record["_DELETIONS_VECTORS_RANGES"]
    return IndexFile(
        record["_INDEX_TYPE"],
        bytes.fromhex(record["_PARTITION"]),
        record["_BUCKET"],
        record["_FILE_NAME"],
        record["_FILE_SIZE"],
        record["_ROW_COUNT"],
        tuple(VectorRange(p["f0"], p["f1"], p["f2"], p.get("_CARDINALITY")) for p in places),
        record.get("_EXTERNAL_PATH"),
        record.get("_GLOBAL_INDEX"),
    )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: "-".join(path.parts[-3::2])[:40])
def test_sample_index_manifest_describes_its_index_files(path: Path) -> None:
    files = decode_index_manifest(path.read_bytes(), str(path))
    assert files
    for file in files:
        data = (path.parents[1] / "index" / file.file_name).read_bytes()
        assert len(data) == file.file_size
        assert held(file, data) == file.row_count
    assert decode_index_manifest(encode_index_manifest(files), "again") == files


def held(file: IndexFile, data: bytes) -> int:
    """How many vectors or hashes of four bytes the index file holds."""
    if file.index_type == HASH:
        return len(data) // 4
    vectors = read_vectors(data, file.ranges or (), file.file_name)
    for place in file.ranges or ():
        assert place.cardinality in (None, len(vectors[place.data_file_name]))
    return len(vectors)


def test_sample_index_manifests_are_there() -> None:
    assert len(SAMPLES) == 9
