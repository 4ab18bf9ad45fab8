"""Whatever value a document of a table is given: it reads back as it was, or is not written.

And whatever a stored document holds: it is read, or refused with an error of Keytide's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keytide.errors import KeytideError
from keytide.format.index_files import (
    DELETION_VECTORS,
    IndexFile,
    VectorRange,
    decode_index_manifest,
    encode_index_manifest,
)
from keytide.format.manifest import (
    ManifestFileMeta,
    decode_manifest,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
)
from keytide.format.manifest_entry import DataFileMeta, FileKind, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Consumer, Snapshot, Tag
from keytide.format.stats import SimpleStats
from keytide.types import Field, parse_sql_type

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
DOCUMENTS: dict[str, str] = GOLDEN["json_documents"]

SNAPSHOT = Snapshot(
    id=7, schema_id=0, base_manifest_list="a", delta_manifest_list="b", commit_user="u",
    commit_identifier=1, commit_kind=CommitKind.APPEND, time_millis=1,
)  # fmt: skip
STATS = SimpleStats(b"a", b"b", (0, None))
FILE = DataFileMeta(
    file_name="data-1.parquet", file_size=1, row_count=1, min_key=b"a", max_key=b"b",
    key_stats=STATS, value_stats=STATS, min_sequence_number=0, max_sequence_number=0,
    schema_id=0, level=0,
)  # fmt: skip
FIELD = Field(0, "k", parse_sql_type("ROW<a INT, b ARRAY<STRING>>"))


class Document(NamedTuple):
    """A sound value, and how it is stored and read."""

    sound: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def in_list(encode: Callable[[Any], bytes], decode: Callable[..., list[Any]]) -> Any:
    return lambda value: encode([value]), lambda data: decode(data, "stored")[0]


def file_in_entry(file: DataFileMeta) -> bytes:
    return encode_manifest([ManifestEntry(FileKind.ADD, b"", 0, 1, file)])


def range_in_file(place: VectorRange) -> bytes:
    return encode_index_manifest([IndexFile(DELETION_VECTORS, b"", 0, "index-1", 9, 1, (place,))])


STORED = {
    "snapshot": Document(SNAPSHOT, Snapshot.to_json, lambda data: Snapshot.from_json(data, "s")),
    "tag": Document(Tag(snapshot=SNAPSHOT), Tag.to_json, lambda data: Tag.from_json(data, "t")),
    "consumer": Document(Consumer(1), Consumer.to_json, lambda data: Consumer.from_json(data, "c")),
    "schema": Document(
        TableSchema(0, (FIELD,), 9), TableSchema.to_json, lambda data: TableSchema.from_json(data)
    ),
    "field": Document(
        FIELD,
        lambda field: TableSchema(0, (field,), 9).to_json(),
        lambda data: TableSchema.from_json(data).fields[0],
    ),
    "manifest entry": Document(
        ManifestEntry(FileKind.ADD, b"", 0, 1, FILE), *in_list(encode_manifest, decode_manifest)
    ),
    "data file": Document(FILE, file_in_entry, lambda data: decode_manifest(data, "m")[0].file),
    "statistics": Document(
        STATS,
        lambda stats: file_in_entry(replace(FILE, key_stats=stats)),
        lambda data: decode_manifest(data, "m")[0].file.key_stats,
    ),
    "manifest": Document(
        ManifestFileMeta("manifest-1", 1, 1, 0, STATS, 0),
        *in_list(encode_manifest_list, decode_manifest_list),
    ),
    "index file": Document(
        IndexFile(DELETION_VECTORS, b"", 0, "index-1", 9, 1),
        *in_list(encode_index_manifest, decode_index_manifest),
    ),
    "vector range": Document(
        VectorRange("data-1.parquet", 1, 2, 3),
        range_in_file,
        lambda data: (decode_index_manifest(data, "i")[0].ranges or ())[0],
    ),
}
PLACES = [(name, f.name) for name, stored in STORED.items() for f in fields(stored.sound)]

EDGES = [e + d for e in (0, 2**15, 2**31, -(2**31), 2**63, -(2**63), 10**30) for d in (-1, 0, 1)]
ATOMS = st.one_of(
    st.sampled_from([None, True, False, "", "APPEND", "\ud800", "-1", b"", b"x", *EDGES]),
    st.sampled_from([1.0, 1.5, float("nan"), float("inf"), Decimal("1.5"), Decimal("NaN")]),
    st.sampled_from([np.int64(5), np.float64(5), object(), parse_sql_type("INT")]),
    st.text(max_size=3), st.binary(max_size=3), st.integers(),
)  # fmt: skip
ODD = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=2),
    ),
    max_leaves=3,
)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("name", "member"), PLACES)
@given(value=ODD)
@example(value=5)
@example(value="7")
@example(value=1.5)
@example(value=2**63)
@example(value=2**31)
@example(value="\ud800")
@example(value={"a": 5})
@example(value=("a", 5))
def test_any_value_of_any_member_is_read_back_or_not_written(
    name: str, member: str, value: Any
) -> None:
    document = STORED[name]
    try:
        changed = replace(document.sound, **{member: value})
        data = document.encode(changed)
    except KeytideError:
        return
    assert document.decode(data) == changed


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.sampled_from(EDGES), st.floats(), st.text(max_size=3),
        st.sampled_from(["APPEND", "INT", "ROW<>", "P1D", "2024-05-06T07:08:09"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["id", "name", "type", "fields", "x"]), inner, max_size=3),
    ),
    max_leaves=4,
)  # fmt: skip
PARSERS: dict[str, Callable[[bytes, str], Any]] = {
    "snapshot_full": Snapshot.from_json,
    "tag_full": Tag.from_json,
    "consumer": Consumer.from_json,
    "schema": TableSchema.from_json,
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("name", "member"),
    [(name, member) for name in PARSERS for member in json.loads(DOCUMENTS[name])],
)
@given(value=JSON)
def test_any_member_of_a_stored_document_is_read_or_refused_by_name(
    name: str, member: str, value: Any
) -> None:
    data = json.dumps({**json.loads(DOCUMENTS[name]), member: value}).encode()
    refused: KeytideError | None = None
    try:
        read = PARSERS[name](data, "stored/there")
    except KeytideError as error:
        refused = error
    if refused is None:
        assert PARSERS[name](read.to_json(), "again") == read
    else:
        assert "stored/there" in str(refused)
