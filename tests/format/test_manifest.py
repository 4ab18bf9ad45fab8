from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from keytide.errors import DataError, UnsupportedError
from keytide.format.binary_row import decode_rows, encode_rows
from keytide.format.manifest import (
    ManifestFileMeta,
    copy_manifest,
    decode_manifest,
    decode_manifest_list,
    encode_manifest,
    encode_manifest_list,
    live_entries,
    open_manifests,
    summarize,
)
from keytide.format.manifest_entry import (
    DataFileMeta,
    Entries,
    FileKind,
    ManifestEntry,
    without_pairs,
)
from keytide.format.snapshot import Snapshot
from keytide.format.stats import EMPTY_STATS, SimpleStats
from keytide.types import DataType, parse_sql_type, parse_type

DATA = Path(__file__).parents[1] / "data"
CHAINS: dict[str, dict[str, Any]] = json.loads((DATA / "golden.json").read_text())["avro_records"]
TABLES = sorted(path.parent for path in DATA.glob("samples/**/spec.db/*/snapshot"))
NO_PARTITION = bytes(12)


def data_file(name: str = "data-1.parquet", **members: Any) -> DataFileMeta:
    members.setdefault("level", 0)
    return DataFileMeta(
        file_name=name,
        file_size=100,
        row_count=10,
        min_key=b"a",
        max_key=b"b",
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=0,
        max_sequence_number=9,
        schema_id=0,
        **members,
    )


def entry(text: str, partition: bytes = NO_PARTITION, bucket: int = 0) -> ManifestEntry:
    """``+a`` adds file a on level 0, ``-a@5`` deletes it from level 5."""
    name, _, level = text[1:].partition("@")
    kind = FileKind.ADD if text[0] == "+" else FileKind.DELETE
    return ManifestEntry(kind, partition, bucket, 2, data_file(name, level=int(level or 0)))


def text(entries: Sequence[ManifestEntry]) -> str:
    return " ".join(
        f"{'+-'[e.kind]}{e.file.file_name}{f'@{e.file.level}' if e.file.level else ''}"
        for e in entries
    )


def entries_of(state: str) -> list[ManifestEntry]:
    return [entry(word) for word in state.split()]


def partition_rows(values: list[Any], sql_type: str) -> list[bytes]:
    type_ = parse_sql_type(sql_type)
    return encode_rows([pa.array(values, type_.to_arrow())], [type_])


def merge(entries: Sequence[ManifestEntry], *, forget: bool = False) -> list[ManifestEntry]:
    """The entries of the manifest that is made of one with these."""
    [opened] = open_manifests([(encode_manifest(entries), "m", None)])
    left = opened.filter(without_pairs(Entries.stored(opened.columns), forget=forget))
    return list(decode_manifest(copy_manifest(left), "m"))


# What entries mean together


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("state", "live", "merged"),
    [
        ("", "", ""),
        ("+a +b", "+a +b", "+a +b"),
        ("+a -a", "", ""),
        ("+a +b -a +c", "+b +c", "+b +c"),
        ("-x +a", "+a", "+a -x"),
        ("+a -a +a@5", "+a@5", "+a@5"),
        ("+a@1 -a", "+a@1", "+a@1 -a"),
        ("+a -a +a@4 -a@4 +a@5", "+a@5", "+a@5"),
    ],
)
def test_entries_combine_in_any_order(state: str, live: str, merged: str) -> None:
    for order in permutations(entries_of(state)):
        assert set(text(list(live_entries(order).values())).split()) == set(live.split())
        assert set(text(merge(order)).split()) == set(merged.split())
    assert text(list(live_entries(entries_of(state)).values())) == live


def test_merging_all_manifests_may_forget_what_was_deleted() -> None:
    state = entries_of("+a +b -a +c -x +c@5 -c")
    assert text(merge(state, forget=True)) == "+b +c@5"


def test_merging_manifests_first_leaves_the_same_live_files() -> None:
    state = entries_of("+a +b -a +b@5 -b +c -x +d -d@1")
    added_elsewhere = [entry("+x"), entry("+d@1")]
    for cut in range(len(state) + 1):
        merged = merge(state[:cut]) + merge(state[cut:]) + added_elsewhere
        assert live_entries(merged) == live_entries(state + added_elsewhere)


@pytest.mark.parametrize(
    "changed",
    [
        replace(entry("-a"), partition=b"other"),
        replace(entry("-a"), bucket=1),
        replace(entry("-a"), file=data_file("a", level=1)),
        replace(entry("-a"), file=data_file("b")),
        replace(entry("-a"), file=data_file("a", extra_files=("a.index",))),
        replace(entry("-a"), file=data_file("a", embedded_file_index=b"i")),
        replace(entry("-a"), file=data_file("a", external_path="s3://x/a")),
    ],
)
def test_deletion_of_another_identity_leaves_the_file(changed: ManifestEntry) -> None:
    assert len(live_entries([entry("+a"), changed])) == 1
    assert len(merge([entry("+a"), changed])) == 2


def test_other_members_are_no_part_of_the_identity() -> None:
    deletion = replace(entry("-a"), total_buckets=9, file=data_file("a", delete_row_count=3))
    assert live_entries([entry("+a"), deletion]) == {}


# Summaries


def test_summary_of_an_unpartitioned_manifest() -> None:
    entries = [entry("+a", bucket=3), entry("+b@5", bucket=1), entry("-c@2", bucket=7)]
    assert summarize(entries, "manifest-1", 77, 4, []) == ManifestFileMeta(
        file_name="manifest-1",
        file_size=77,
        num_added_files=2,
        num_deleted_files=1,
        partition_stats=EMPTY_STATS,
        schema_id=4,
        min_bucket=1,
        max_bucket=7,
        min_level=0,
        max_level=5,
    )


def test_summary_bounds_partitions_and_counts_null_ones_per_entry() -> None:
    types = [parse_sql_type("STRING"), parse_sql_type("INT")]
    columns = [pa.array(["b", "a", None, None]), pa.array([1, 9, -3, -3], pa.int32())]
    entries = [entry("+a", partition=row) for row in encode_rows(columns, types)]
    stats = summarize(entries, "m", 1, 0, types).partition_stats
    rows = decode_rows([stats.min_values, stats.max_values], types)
    assert [column.to_pylist() for column in rows] == [["a", "b"], [-3, 9]]
    assert stats.null_counts == (2, 0)


@pytest.mark.parametrize("sql_type", ["STRING NOT NULL", "DATE", "DECIMAL(20, 2)", "TIMESTAMP(9)"])
def test_summary_of_null_partitions_has_null_bounds(sql_type: str) -> None:
    type_ = parse_sql_type(sql_type)
    entries = [entry("+a", partition=row) for row in partition_rows([None], sql_type)]
    stats = summarize(entries, "m", 1, 0, [type_]).partition_stats
    (column,) = decode_rows([stats.min_values, stats.max_values], [type_.with_nullable(True)])
    assert (column.to_pylist(), stats.null_counts) == ([None, None], (1,))


def test_summary_of_no_entries_knows_no_bounds() -> None:
    summary = summarize([], "m", 1, 0, [parse_sql_type("INT")])
    assert (summary.num_added_files, summary.num_deleted_files) == (0, 0)
    assert (summary.min_bucket, summary.max_level) == (None, None)
    assert summary.partition_stats.null_counts == (None,)


# Files


def test_manifest_keeps_every_member() -> None:
    file = DataFileMeta(
        file_name="data-1.parquet",
        file_size=2**40,
        row_count=10,
        min_key=b"\0a",
        max_key=b"\0b",
        key_stats=SimpleStats(b"a", b"b", (0,)),
        value_stats=SimpleStats(b"c", b"d", (None, 3)),
        min_sequence_number=5,
        max_sequence_number=2**62,
        schema_id=3,
        level=5,
        extra_files=("data-1.parquet.index",),
        creation_time=1_720_496_663_041,
        delete_row_count=2,
        embedded_file_index=b"\1\2",
        file_source=1,
        value_stats_cols=("a", "é"),
        external_path="s3://bucket/data-1.parquet",
        first_row_id=7,
        write_cols=("a",),
    )
    bare = replace(
        data_file(),
        value_stats=SimpleStats(b"", b"", None),
        value_stats_cols=(),
        creation_time=None,
    )
    entries = [
        ManifestEntry(FileKind.ADD, b"p", 0, 4, file),
        ManifestEntry(FileKind.DELETE, NO_PARTITION, -2, -2, bare),
    ]
    assert decode_manifest(encode_manifest(entries), "m") == entries


def test_manifest_list_keeps_every_member_and_may_be_empty() -> None:
    full = ManifestFileMeta("m-1", 9, 1, 2, SimpleStats(b"a", b"b", (0,)), 3, 0, 4, 0, 5, 10, 20)
    bare = ManifestFileMeta("m-2", 9, 1, 2, EMPTY_STATS, 3)
    for manifests in ([full, bare], []):
        assert decode_manifest_list(encode_manifest_list(manifests), "l") == manifests


def test_written_files_have_java_names_and_member_order() -> None:
    written = fastavro.reader(io.BytesIO(encode_manifest([entry("+a")])))
    assert written.codec == "zstandard"
    schema = written.writer_schema
    file_schema = schema["fields"][-1]["type"]
    prefix = "org.apache.paimon.avro.generated.record"
    assert (schema["name"], file_schema["name"]) == (prefix, f"{prefix}__FILE")
    names = [field["name"] for field in schema["fields"]]
    assert names == ["_VERSION", "_KIND", "_PARTITION", "_BUCKET", "_TOTAL_BUCKETS", "_FILE"]
    members = [field.name.upper() for field in fields(DataFileMeta)]
    assert [field["name"] for field in file_schema["fields"]] == [f"_{m}" for m in members]


def test_written_schemas_are_those_of_the_model_tables() -> None:
    folder = DATA / "samples/independent/wh/spec.db/m_full/manifest"
    lists = sorted(folder.glob("manifest-list-*"))
    manifests = sorted(set(folder.glob("manifest-*")) - set(lists))
    for path, written in (
        (lists[0], encode_manifest_list([])),
        (manifests[0], encode_manifest([])),
    ):
        model = fastavro.reader(io.BytesIO(path.read_bytes())).writer_schema
        assert fastavro.reader(io.BytesIO(written)).writer_schema == model


@pytest.mark.parametrize("decode", [decode_manifest, decode_manifest_list])
def test_torn_file_names_its_path(decode: Any) -> None:
    encode = encode_manifest if decode is decode_manifest else encode_manifest_list
    values = [entry("+a")] if decode is decode_manifest else [summarize([], "m", 1, 0, [])]
    data = encode(values)
    assert decode(data, "table/manifest-1", len(data)) == values
    for length in range(len(data)):
        with pytest.raises(DataError, match="table/manifest-1: damaged file"):
            decode(data[:length], "table/manifest-1", len(data))
    for length in (0, 3, len(data) // 2, len(data) - 1):
        with pytest.raises(DataError, match="table/manifest-1: not a complete Avro file"):
            decode(data[:length], "table/manifest-1")


def test_flipped_byte_inside_a_manifest_never_passes_silently() -> None:
    entries = entries_of("+a +b -c")
    data = encode_manifest(entries)
    for position in range(len(data) - 20, len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x55
        with pytest.raises(DataError, match="manifest-1"):
            decode_manifest(bytes(broken), "manifest-1")


@pytest.mark.parametrize("decode", [decode_manifest, decode_manifest_list])
def test_record_without_required_members_names_the_path(decode: Any) -> None:
    data = avro_file([{"name": "_VERSION", "type": "int"}], [{"_VERSION": 2}])
    with pytest.raises(DataError, match="manifest-1: missing or invalid member"):
        decode(data, "manifest-1")


@pytest.mark.parametrize("decode", [decode_manifest, decode_manifest_list])
def test_other_record_version_is_unsupported(decode: Any) -> None:
    data = avro_file([{"name": "_VERSION", "type": "int"}], [{"_VERSION": 3}])
    with pytest.raises(UnsupportedError, match="manifest-1: record version 3"):
        decode(data, "manifest-1")


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "zstandard"])
def test_manifest_in_any_codec_is_read(codec: str) -> None:
    entries = entries_of("+a -b@5")
    source = fastavro.reader(io.BytesIO(encode_manifest(entries)))
    records = list(source)
    data = avro_file(source.writer_schema["fields"], records, codec)
    assert decode_manifest(data, "m") == entries


def avro_file(members: list[Any], records: list[Any], codec: str = "null") -> bytes:
    buffer = io.BytesIO()
    schema = {"type": "record", "name": "OtherName", "fields": members}
    fastavro.writer(buffer, schema, records, codec=codec)
    return buffer.getvalue()


# Golden chains: raw files of other writers with their decoded records


def golden_files(kind: str) -> list[Any]:
    files = []
    for name, chain in CHAINS.items():
        found = chain["manifests"] if kind == "manifests" else [chain[kind]]
        files += [pytest.param(file, id=f"{name}-{n}") for n, file in enumerate(found)]
    return files


@pytest.mark.parametrize("golden", golden_files("manifests"))
def test_golden_manifest_is_decoded_and_written_again(golden: dict[str, Any]) -> None:
    data = base64.b64decode(golden["file_base64"])
    entries = decode_manifest(data, "m", len(data))
    again = encode_manifest(entries)
    assert decode_manifest(again, "m") == entries
    assert_records(again, golden["records"])


@pytest.mark.parametrize("golden", golden_files("delta_manifest_list"))
def test_golden_manifest_list_is_decoded_and_written_again(golden: dict[str, Any]) -> None:
    data = base64.b64decode(golden["file_base64"])
    manifests = decode_manifest_list(data, "l", len(data))
    again = encode_manifest_list(manifests)
    assert decode_manifest_list(again, "l") == manifests
    assert_records(again, golden["records"])


# Members that only pypaimon or later releases write; all of them null or derived.
_UNWRITTEN = {"_WRITE_COLS_SEQUENCES", "_TOTAL_BUCKETS", "_EXTRA_FILES"}


def assert_records(data: bytes, golden: list[dict[str, Any]]) -> None:
    written = [plain(record) for record in fastavro.reader(io.BytesIO(data))]
    assert len(written) == len(golden)
    for mine, theirs in zip(written, golden, strict=True):
        assert_members(mine, theirs)


def assert_members(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in mine.keys() | theirs.keys():
        if isinstance(mine.get(name), dict) and "_MIN_VALUES" not in mine[name]:
            assert_members(mine[name], theirs[name])
        elif name in mine or name not in _UNWRITTEN:
            assert mine[name] == moment(theirs.get(name)), name


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return value


def moment(value: Any) -> Any:
    is_moment = isinstance(value, dict) and "timestamp_millis_utc_wallclock" in value
    return datetime.fromisoformat(value["timestamp_millis_utc_wallclock"]) if is_moment else value


# Sample tables


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_sample_table_holds_what_its_snapshots_count(table: Path) -> None:
    for path in table.glob("**/snapshot/snapshot-*"):
        snapshot = Snapshot.from_json(path.read_bytes(), str(path))
        base = read_list(table, snapshot.base_manifest_list, snapshot.base_manifest_list_size)
        delta = read_list(table, snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)
        changes = read_entries(table, delta)
        live = live_entries(read_entries(table, base) + changes)
        assert sum(e.file.row_count for e in live.values()) == snapshot.total_record_count
        signed = [(-1 if e.kind else 1) * e.file.row_count for e in changes]
        assert sum(signed) == snapshot.delta_record_count
        if snapshot.changelog_manifest_list is not None:
            changelog = read_entries(table, read_list(table, snapshot.changelog_manifest_list))
            assert all(e.kind is FileKind.ADD for e in changelog)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_live_files_of_a_sample_table_exist_with_their_size(table: Path) -> None:
    latest = max(table.glob("snapshot/snapshot-*"), key=lambda path: int(path.name[9:]))
    snapshot = Snapshot.from_json(latest.read_bytes(), str(latest))
    manifests = read_list(table, snapshot.base_manifest_list)
    manifests += read_list(table, snapshot.delta_manifest_list)
    live = live_entries(read_entries(table, manifests)).values()
    for live_entry in live:
        (path,) = table.rglob(live_entry.file.file_name)
        assert path.stat().st_size == live_entry.file.file_size
        assert path.parent.name == f"bucket-{live_entry.bucket}"


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_every_manifest_of_a_sample_table_survives_a_round_trip(table: Path) -> None:
    for path in (table / "manifest").glob("manifest-*"):
        data = path.read_bytes()
        if path.name.startswith("manifest-list-"):
            manifests = decode_manifest_list(data, str(path))
            assert decode_manifest_list(encode_manifest_list(manifests), "again") == manifests
        else:
            entries = decode_manifest(data, str(path))
            assert entries
            assert decode_manifest(encode_manifest(entries), "again") == entries


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_summaries_agree_with_those_of_the_writer(table: Path) -> None:
    types = partition_types(table)
    for path in (table / "manifest").glob("manifest-list-*"):
        for meta in decode_manifest_list(path.read_bytes(), str(path)):
            entries = read_entries(table, [meta])
            mine = summarize(entries, meta.file_name, meta.file_size, meta.schema_id, types)
            if meta.min_bucket is None:
                mine = replace(
                    mine, min_bucket=None, max_bucket=None, min_level=None, max_level=None
                )
            assert mine == meta


def read_list(table: Path, name: str, size: int | None = None) -> list[ManifestFileMeta]:
    path = table / "manifest" / name
    return decode_manifest_list(path.read_bytes(), str(path), size)


def read_entries(table: Path, manifests: list[ManifestFileMeta]) -> list[ManifestEntry]:
    found: list[ManifestEntry] = []
    for meta in manifests:
        path = table / "manifest" / meta.file_name
        entries = decode_manifest(path.read_bytes(), str(path), meta.file_size)
        assert np.sum([e.kind is FileKind.ADD for e in entries]) == meta.num_added_files
        found += entries
    return found


def partition_types(table: Path) -> list[DataType]:
    schema = json.loads((table / "schema" / "schema-0").read_text())
    types = {field["name"]: parse_type(field["type"]) for field in schema["fields"]}
    return [types[name] for name in schema["partitionKeys"]]


def test_sample_tables_are_there() -> None:
    assert len(TABLES) == 22
