from __future__ import annotations

from pathlib import Path

import pytest

from keytide.errors import DataError, InvalidError
from keytide.format import paths
from keytide.format.paths import Hint, MetadataKind

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
UUID = "0b7e2a5c-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (paths.schema_path(0), "schema/schema-0"),
        (paths.schema_path(2, "b1"), "branch/branch-b1/schema/schema-2"),
        (paths.snapshot_path(12), "snapshot/snapshot-12"),
        (paths.snapshot_path(1, "b1"), "branch/branch-b1/snapshot/snapshot-1"),
        (paths.snapshot_path(1, paths.MAIN_BRANCH), "snapshot/snapshot-1"),
        (paths.changelog_path(3), "changelog/changelog-3"),
        (paths.tag_path("2024-01-01 noon"), "tag/tag-2024-01-01 noon"),
        (paths.tag_path("é", "b1"), "branch/branch-b1/tag/tag-é"),
        (paths.consumer_path("me"), "consumer/consumer-me"),
        (paths.snapshot_hint_path(Hint.LATEST), "snapshot/LATEST"),
        (paths.snapshot_hint_path(Hint.EARLIEST, "b"), "branch/branch-b/snapshot/EARLIEST"),
        (paths.changelog_hint_path(Hint.EARLIEST), "changelog/EARLIEST"),
        (paths.manifest_path("manifest-x"), "manifest/manifest-x"),
        (paths.index_path("index-x"), "index/index-x"),
        (paths.statistics_path("stat-x"), "statistics/stat-x"),
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
        (paths.changelog_path, paths.parse_changelog_name),
        (paths.bucket_name, paths.parse_bucket_name),
    ],
)
def test_numbered_names_round_trip(make, parse, number: int) -> None:
    assert parse(make(number).rsplit("/", 1)[-1]) == number


@pytest.mark.parametrize("name", ["t1", "2024-01-01", "a b", "snapshot-1", "日本", "."])
@pytest.mark.parametrize(
    ("make", "parse"),
    [
        (paths.tag_path, paths.parse_tag_name),
        (paths.consumer_path, paths.parse_consumer_name),
        (paths.branch_dir, paths.parse_branch_name),
    ],
)
def test_named_names_round_trip(make, parse, name: str) -> None:
    assert parse(make(name).rsplit("/", 1)[-1]) == name


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


@pytest.mark.parametrize("name", ["bucket-", "bucket--2", "bucket-postpone2", "bucket-1/", "b-1"])
def test_names_that_are_no_bucket_parse_to_none(name: str) -> None:
    assert paths.parse_bucket_name(name) is None


def test_postpone_bucket_round_trips() -> None:
    assert paths.parse_bucket_name(paths.bucket_name(-2)) == -2


@pytest.mark.parametrize("name", ["tag-", "tag- ", "tag-a/b", "tag-a\n", "t1", "snapshot-1"])
def test_names_that_are_no_tag_parse_to_none(name: str) -> None:
    assert paths.parse_tag_name(name) is None


@pytest.mark.parametrize("name", ["", "  ", "a/b", "../x", "a\nb", "a\0"])
@pytest.mark.parametrize("make", [paths.tag_path, paths.consumer_path, paths.branch_dir])
def test_names_that_cannot_be_files_are_refused(make, name: str) -> None:
    with pytest.raises(InvalidError, match="cannot be a file name"):
        make(name)


@pytest.mark.parametrize("make", [paths.snapshot_path, paths.schema_path, paths.bucket_name])
def test_negative_ids_are_refused(make) -> None:
    with pytest.raises(InvalidError, match="-1"):
        make(-1)


@pytest.mark.parametrize("kind", list(MetadataKind))
def test_metadata_names_round_trip(kind: MetadataKind) -> None:
    name = paths.metadata_file_name(kind, UUID, 14)
    assert name == f"{kind.value}-{UUID}-14"
    assert paths.parse_metadata_file_name(name) == paths.MetadataFileName(kind, UUID, 14)


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        (f"index-manifest-{UUID}", MetadataKind.INDEX_MANIFEST, None),
        (f"manifest-list-{UUID}-changelog", MetadataKind.MANIFEST_LIST, None),
        (f"manifest-{UUID}-changelog-0", MetadataKind.MANIFEST, 0),
    ],
)
def test_metadata_names_of_other_writers_are_known(
    name: str, kind: MetadataKind, number: int | None
) -> None:
    assert paths.parse_metadata_file_name(name) == paths.MetadataFileName(kind, UUID, number)


@pytest.mark.parametrize(
    "name",
    [
        "manifest",
        "manifest-list-1",
        f"manifest-{UUID.upper()}-0",
        f"manifest-{UUID}-00",
        f"manifest-{UUID}-0.avro",
        f".manifest-{UUID}-0.{UUID}.tmp",
        f"data-{UUID}-0.parquet",
        f"list-{UUID}-0",
    ],
)
def test_names_that_are_no_metadata_parse_to_none(name: str) -> None:
    assert paths.parse_metadata_file_name(name) is None


@pytest.mark.parametrize("extension", ["parquet", "orc", "avro", "zstd.parquet"])
@pytest.mark.parametrize("prefix", [paths.DATA_FILE_PREFIX, paths.CHANGELOG_FILE_PREFIX, "x.y+"])
def test_data_file_names_round_trip(prefix: str, extension: str) -> None:
    name = paths.data_file_name(UUID, 3, extension, prefix)
    parsed = paths.parse_data_file_name(name, prefix)
    assert parsed == paths.DataFileName(prefix, UUID, 3, extension)
    assert paths.parse_data_file_name(name, "other-") is None


@pytest.mark.parametrize(
    "name", ["data-", f"data-{UUID}.parquet", f"data-{UUID}-0", f"data-{UUID}-0.", "data-0.parquet"]
)
def test_names_that_are_no_data_file_parse_to_none(name: str) -> None:
    assert paths.parse_data_file_name(name) is None


@pytest.mark.parametrize("user", ["me", UUID, "a-s-1-w-b"])
def test_postpone_names_round_trip(user: str) -> None:
    name = paths.postpone_file_name(user, 2, UUID, 5)
    assert name == f"data-u-{user}-s-2-w-{UUID}-5.avro"
    assert paths.parse_postpone_file_name(name) == paths.PostponeFileName(user, 2, UUID, 5, "avro")


def test_data_file_name_is_no_postpone_name() -> None:
    assert paths.parse_postpone_file_name(f"data-{UUID}-0.avro") is None


def test_compacted_changelog_of_its_own_bucket_is_the_head_of_the_file() -> None:
    name = f"compacted-changelog-{UUID}-1$3-900.cc-parquet"
    assert paths.parse_compacted_changelog_name(name) == paths.CompactedChangelogName(
        holder_bucket=3, holder_name=name, offset=0, length=900, file_format="parquet"
    )


def test_compacted_changelog_of_another_bucket_points_into_the_holder() -> None:
    holder = f"compacted-changelog-{UUID}-1$3-900"
    name = f"{holder}-900-250.cc-parquet"
    assert paths.parse_compacted_changelog_name(name) == paths.CompactedChangelogName(
        holder_bucket=3,
        holder_name=f"{holder}.cc-parquet",
        offset=900,
        length=250,
        file_format="parquet",
    )


@pytest.mark.parametrize("name", ["x$1-2-3.cc-orc", "x$1.cc-orc", "x$1-2.orc", "x-1-2.cc-orc"])
def test_names_that_are_no_compacted_changelog_parse_to_none(name: str) -> None:
    assert paths.parse_compacted_changelog_name(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data-x-0.parquet", "parquet"),
        ("dt=1.5/bucket-0/data-x-0.orc", "orc"),
        ("data-x-0.zstd.parquet", "parquet"),
        ("data-x-0.avro.zst", "avro"),
        ("x$1-2.cc-parquet", "parquet"),
    ],
)
def test_extension_decides_the_format(name: str, expected: str) -> None:
    assert paths.data_file_format(name) == expected


@pytest.mark.parametrize("name", ["data-x-0", "data-x-0.", "a.b/data-x-0"])
def test_file_without_extension_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="no extension"):
        paths.data_file_format(name)


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


def test_temporaries_have_a_leading_dot() -> None:
    assert paths.is_temporary(f".snapshot-1.{UUID}.tmp")
    assert not paths.is_temporary("snapshot-1")


def test_fresh_names_never_repeat_and_follow_their_uuid() -> None:
    names = paths.FileNames(UUID)
    made = [
        names.metadata(MetadataKind.MANIFEST),
        names.metadata(MetadataKind.MANIFEST_LIST),
        names.data_file("parquet"),
        names.changelog_file("parquet"),
    ]
    assert made == [
        f"manifest-{UUID}-0",
        f"manifest-list-{UUID}-1",
        f"data-{UUID}-2.parquet",
        f"changelog-{UUID}-3.parquet",
    ]


def test_fresh_uuids_differ_and_parse() -> None:
    first, second = paths.FileNames(), paths.FileNames()
    assert first.uuid != second.uuid
    assert paths.parse_metadata_file_name(first.metadata(MetadataKind.INDEX)) is not None


_KNOWN = {
    "snapshot": paths.parse_snapshot_name,
    "schema": paths.parse_schema_name,
    "tag": paths.parse_tag_name,
    "manifest": paths.parse_metadata_file_name,
    "index": paths.parse_metadata_file_name,
}


def test_every_name_in_the_sample_tables_is_known() -> None:
    files = [path for path in SAMPLES.rglob("spec.db/**/*") if path.is_file()]
    unknown = [path.name for path in files if not _is_known(path)]
    assert len(files) > 400
    assert unknown == []


def _is_known(path: Path) -> bool:
    folder, name = path.parent.name, path.name
    if folder.startswith("bucket-"):
        changelog = paths.parse_data_file_name(name, paths.CHANGELOG_FILE_PREFIX)
        known = paths.parse_bucket_name(folder) is not None
        return known and (paths.parse_data_file_name(name) or changelog) is not None
    return name in Hint.__members__ or _KNOWN[folder](name) is not None
