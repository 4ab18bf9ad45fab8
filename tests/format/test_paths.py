from __future__ import annotations

from pathlib import Path

import pytest

from keytide.errors import InvalidError
from keytide.format import paths
from keytide.format.paths import Hint, MetadataFile

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
UUID = "0b7e2a5c-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (paths.schema_path(0), "schema/schema-0"),
        (paths.snapshot_path(12), "snapshot/snapshot-12"),
        (paths.tag_path("2024-01-01 noon"), "tag/tag-2024-01-01 noon"),
        (paths.tag_path("é"), "tag/tag-é"),
        (paths.snapshot_hint_path(Hint.LATEST), "snapshot/LATEST"),
        (paths.snapshot_hint_path(Hint.EARLIEST), "snapshot/EARLIEST"),
        (paths.manifest_path("manifest-x"), "manifest/manifest-x"),
        (paths.index_path("index-x"), "index/index-x"),
        (paths.bucket_dir("", 0), "bucket-0"),
        (paths.bucket_dir("dt=1/p=a%2Fb", 7), "dt=1/p=a%2Fb/bucket-7"),
        (paths.bucket_dir("dt=1", -2, data_dir="data/"), "data/dt=1/bucket-postpone"),
    ],
)
def test_paths_are_where_the_format_puts_them(made: str, expected: str) -> None:
    assert made == expected


@pytest.mark.parametrize("number", [0, 1, 10, 2**63 - 1])
@pytest.mark.parametrize(
    ("make", "parse"),
    [
        (paths.schema_path, paths.parse_schema_name),
        (paths.snapshot_path, paths.parse_snapshot_name),
    ],
)
def test_numbered_names_round_trip(make, parse, number: int) -> None:
    assert parse(make(number).rsplit("/", 1)[-1]) == number


@pytest.mark.parametrize("name", ["t1", "2024-01-01", "a b", "snapshot-1", "日本", "."])
def test_tag_names_round_trip(name: str) -> None:
    assert paths.parse_tag_name(paths.tag_path(name).rsplit("/", 1)[-1]) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "LATEST",
        "snapshot",
        "snapshot-",
        "snapshot--1",
        "snapshot-01",
        "snapshot-1 ",
        "snapshot-1\n",
        "snapshot-x",
        "snapshot-٣",
        "snapshot-1.tmp",
        ".snapshot-1.tmp",
        "Snapshot-1",
        "my-snapshot-1",
        "snapshot-100000000000000000000",
    ],
)
def test_names_that_are_no_snapshot_parse_to_none(name: str) -> None:
    assert paths.parse_snapshot_name(name) is None


@pytest.mark.parametrize("name", ["tag-", "tag- ", "tag-a/b", "tag-a\n", "t1", "snapshot-1"])
def test_names_that_are_no_tag_parse_to_none(name: str) -> None:
    assert paths.parse_tag_name(name) is None


@pytest.mark.parametrize("name", ["", "  ", "a/b", "../x", "a\nb", "a\0"])
def test_tags_that_cannot_be_files_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="cannot be a file name"):
        paths.tag_path(name)


@pytest.mark.parametrize("make", [paths.snapshot_path, paths.schema_path, paths.bucket_name])
def test_negative_ids_are_refused(make) -> None:
    with pytest.raises(InvalidError, match="-1"):
        make(-1)


@pytest.mark.parametrize("file", list(MetadataFile))
def test_metadata_names_begin_with_what_they_hold(file: MetadataFile) -> None:
    assert paths.metadata_file_name(file, UUID, 14) == f"{file.value}-{UUID}-14"


@pytest.mark.parametrize("number", [1, 10, 2**53])
def test_hints_round_trip(number: int) -> None:
    assert paths.encode_hint(number) == str(number).encode()
    assert paths.decode_hint(paths.encode_hint(number)) == number


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"7\n", 7), (b"", None), (b"x", None), (b"-1", None), (b"\xff\x00", None)],
)
def test_hint_of_another_writer_is_read_or_ignored(data: bytes, expected: int | None) -> None:
    assert paths.decode_hint(data) == expected


def test_fresh_names_never_repeat_and_follow_their_uuid() -> None:
    names = paths.FileNames(UUID)
    made = [
        names.metadata(MetadataFile.MANIFEST),
        names.metadata(MetadataFile.MANIFEST_LIST),
        names.data_file("parquet"),
    ]
    assert made == [
        f"manifest-{UUID}-0",
        f"manifest-list-{UUID}-1",
        f"data-{UUID}-2.parquet",
    ]


def test_fresh_uuids_differ() -> None:
    assert paths.FileNames().uuid != paths.FileNames().uuid


@pytest.mark.parametrize(
    ("path", "is_so"),
    [
        (f"bucket-0/data-{UUID}-0.parquet", True),
        (f"s3://b/w/d.db/t/dt=1/p=a%2Fb/bucket-12/changelog-{UUID}-3.orc", True),
        (f"bucket-postpone/data-u-me-s-1-w-{UUID}-0.avro", True),
        (f"bucket-0/data-{UUID}-0.parquet.index", True),
        (f"bucket-0/data-{UUID}-0.parquet-1.index", True),
        (f"bucket-0/index-{UUID}-0", True),
        (f"manifest/manifest-{UUID}-0", True),
        (f"manifest/manifest-list-{UUID}-1", True),
        (f"manifest/index-manifest-{UUID}-1", True),
        (f"index/index-{UUID}-7", True),
        (f"statistics/stat-{UUID}-0", True),
        ("bucket-0/data-1.parquet", False),
        (f"bucket-0/.data-{UUID}-0.parquet.{UUID}.tmp", False),
        (f"bucket-0/data-{UUID}.parquet", False),
        (f"bucket-x/data-{UUID}-0.parquet", False),
        (f"data-{UUID}-0.parquet", False),
        ("manifest/manifest", False),
        ("snapshot/snapshot-1", False),
        ("snapshot/LATEST", False),
        (f"snapshot/expiring-{UUID}", False),
        (f"schema/schema-{UUID}-0", False),
        (f"tag/tag-{UUID}-0", False),
        (f"consumer/consumer-{UUID}-0", False),
        (f"changelog/changelog-{UUID}-0", False),
        (f"branch/branch-{UUID}-0/UNFINISHED", False),
        ("branch/branch-b/snapshot/snapshot-1", False),
        ("manifest/snapshot/snapshot-1", False),
    ],
)
def test_names_with_a_uuid_stand_for_bytes_that_never_change(path: str, is_so: bool) -> None:
    assert paths.never_changes(path) is is_so


_PARSERS = {
    "snapshot": paths.parse_snapshot_name,
    "schema": paths.parse_schema_name,
    "tag": paths.parse_tag_name,
}


def test_every_schema_snapshot_and_tag_of_the_sample_tables_is_found() -> None:
    files = [path for path in SAMPLES.rglob("spec.db/**/*") if path.parent.name in _PARSERS]
    unknown = [path.name for path in files if not _is_known(path)]
    assert {path.parent.name for path in files} == set(_PARSERS)
    assert unknown == []


def _is_known(path: Path) -> bool:
    return path.name in Hint.__members__ or _PARSERS[path.parent.name](path.name) is not None
