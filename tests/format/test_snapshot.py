from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from keytide.base.dataclass import replace
from keytide.errors import DataError, UnsupportedError
from keytide.format.snapshot import BASE_PROPERTY, CommitKind, Consumer, Snapshot, Tag, is_based_on

DATA = Path(__file__).parents[1] / "data"
DOCUMENTS: dict[str, str] = json.loads((DATA / "golden.json").read_text())["json_documents"]
CREATED_NS = 1_714_979_289_123_456_789

SAMPLE_SNAPSHOTS = sorted(DATA.glob("samples/**/snapshot/snapshot-*"))
SAMPLE_TAGS = sorted(DATA.glob("samples/**/tag/tag-*"))


def changed(document: str, **members: object) -> bytes:
    """A golden document with members added, replaced or (None) set to null."""
    return json.dumps({**json.loads(DOCUMENTS[document]), **members}).encode()


def without(document: str, member: str) -> bytes:
    members = json.loads(DOCUMENTS[document])
    del members[member]
    return json.dumps(members).encode()


def unsealed(data: bytes) -> bytes:
    """A document without its last member, a checksum, which other writers do not have."""
    return re.sub(rb',\n  "keytide\.seal" : "keytide-crc32:[0-9a-f]{8}"\n}$', b"\n}", data)


@pytest.mark.parametrize("name", ["snapshot_full", "snapshot_min", "changelog", "tag_plain"])
def test_snapshot_round_trips_to_the_same_bytes(name: str) -> None:
    data = DOCUMENTS[name].encode()
    assert unsealed(Snapshot.from_json(data, name).to_json()) == data


@pytest.mark.parametrize("name", ["tag_full", "tag_plain"])
def test_tag_round_trips_to_the_same_bytes(name: str) -> None:
    data = DOCUMENTS[name].encode()
    assert unsealed(Tag.from_json(data, name).to_json()) == data


def test_consumer_round_trips_to_the_same_bytes() -> None:
    data = DOCUMENTS["consumer"].encode()
    assert Consumer.from_json(data, "consumer-x") == Consumer(8)
    assert unsealed(Consumer(8).to_json()) == data


def test_every_member_of_a_full_snapshot_is_read() -> None:
    snapshot = Snapshot.from_json(DOCUMENTS["snapshot_full"].encode(), "snapshot-7")
    assert snapshot == Snapshot(
        version=3,
        uuid="0b7e2a5c-1111-2222-3333-444455556666",
        id=7,
        schema_id=1,
        base_manifest_list="manifest-list-u-4",
        base_manifest_list_size=1001,
        delta_manifest_list="manifest-list-u-5",
        delta_manifest_list_size=1002,
        changelog_manifest_list="manifest-list-u-6",
        changelog_manifest_list_size=1003,
        index_manifest="index-manifest-u-2",
        commit_user="user-1",
        writer_version="2.1-SNAPSHOT",
        commit_identifier=42,
        commit_kind=CommitKind.COMPACT,
        time_millis=1720496663041,
        total_record_count=100,
        delta_record_count=5,
        changelog_record_count=3,
        watermark=-(2**63),
        statistics="stat-u-0",
        properties={"k": "v"},
        next_row_id=0,
        operation="MERGE",
    )


def test_unknown_members_are_ignored() -> None:
    data = changed("snapshot_min", logOffsets={}, futureMember=[{"a": 1.5}])
    assert unsealed(Snapshot.from_json(data, "s").to_json()) == DOCUMENTS["snapshot_min"].encode()


@pytest.mark.parametrize("member", ["changelogManifestList", "watermark", "properties", "uuid"])
def test_null_means_absent(member: str) -> None:
    data = changed("snapshot_min", **{member: None})
    assert unsealed(Snapshot.from_json(data, "s").to_json()) == DOCUMENTS["snapshot_min"].encode()


@pytest.mark.parametrize("member", ["totalRecordCount", "deltaRecordCount"])
def test_missing_counts_read_as_zero(member: str) -> None:
    snapshot = Snapshot.from_json(without("snapshot_min", member), "s")
    counts = {"totalRecordCount": (0, 1), "deltaRecordCount": (1, 0)}
    assert (snapshot.total_record_count, snapshot.delta_record_count) == counts[member]


def test_empty_properties_are_written_as_an_empty_object() -> None:
    snapshot = Snapshot.from_json(changed("snapshot_min", properties={}), "s")
    assert b'"properties" : { }' in snapshot.to_json()


def test_text_beyond_ascii_is_written_as_it_is() -> None:
    snapshot = Snapshot.from_json(changed("snapshot_min", commitUser='é"\n'), "s")
    assert '"commitUser" : "é\\"\\n"' in snapshot.to_json().decode()


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_torn_snapshot_names_its_path(length: int) -> None:
    with pytest.raises(DataError, match="warehouse/snapshot-7: not a complete JSON"):
        Snapshot.from_json(DOCUMENTS["snapshot_full"].encode()[:length], "warehouse/snapshot-7")


@pytest.mark.parametrize("data", [b"[1]", b"7", b"null", b'"x"'])
def test_document_that_is_no_object_names_its_path(data: bytes) -> None:
    with pytest.raises(DataError, match="snapshot-7: expected a JSON object"):
        Snapshot.from_json(data, "snapshot-7")


@pytest.mark.parametrize(
    "member",
    [
        "version",
        "id",
        "schemaId",
        "baseManifestList",
        "deltaManifestList",
        "commitUser",
        "commitIdentifier",
        "commitKind",
        "timeMillis",
    ],
)
def test_missing_required_member_is_named_with_the_path(member: str) -> None:
    with pytest.raises(DataError, match=f"snapshot-1: member '{member}' .* found nothing"):
        Snapshot.from_json(without("snapshot_min", member), "snapshot-1")


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("id", "1", "an integer of at most 64 bits, found '1'"),
        ("id", True, "an integer of at most 64 bits, found True"),
        ("id", 1.5, "an integer"),
        ("commitUser", 1, "a string, found 1"),
        ("properties", [], "an object"),
    ],
)
def test_mistyped_member_is_named_with_what_was_found(
    member: str, value: object, expected: str
) -> None:
    with pytest.raises(DataError, match=f"snapshot-1: member '{member}' must be {expected}"):
        Snapshot.from_json(changed("snapshot_min", **{member: value}), "snapshot-1")


def test_newer_format_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="snapshot-1: format version 4"):
        Snapshot.from_json(changed("snapshot_min", version=4), "snapshot-1")


def test_unknown_commit_kind_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="commitKind 'MERGE' is not one of APPEND"):
        Snapshot.from_json(changed("snapshot_min", commitKind="MERGE"), "snapshot-1")


@pytest.mark.parametrize(
    ("created", "expected_ns"),
    [
        ([2024, 5, 6, 7, 8, 9, 123456789], CREATED_NS),
        ("2024-05-06T07:08:09.123", CREATED_NS - 456_789),
        ([2024, 5, 6, 7, 8, 9], CREATED_NS - 123_456_789),
        ([2024, 5, 6, 7, 8], CREATED_NS - 9_123_456_789),
    ],
)
@pytest.mark.parametrize(
    ("retained", "retained_ns"),
    [
        (90000.5, 90_000_500_000_000),
        ("PT25H", 90_000_000_000_000),
        ("PT25H0.5S", 90_000_500_000_000),
        ("P1DT1H2M3S", 90_123_000_000_000),
        (86400, 86_400_000_000_000),
    ],
)
def test_tag_times_are_read_in_every_form(
    created: object, expected_ns: int, retained: object, retained_ns: int
) -> None:
    data = changed("tag_plain", tagCreateTime=created, tagTimeRetained=retained)
    tag = Tag.from_json(data, "tag-t")
    assert (tag.create_time_ns, tag.time_retained_ns) == (expected_ns, retained_ns)


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [
        (CREATED_NS, "[ 2024, 5, 6, 7, 8, 9, 123456789 ]"),
        (CREATED_NS - 123_456_789, "[ 2024, 5, 6, 7, 8, 9 ]"),
        (CREATED_NS - 9_123_456_789, "[ 2024, 5, 6, 7, 8 ]"),
        (0, "[ 1970, 1, 1, 0, 0 ]"),
    ],
)
def test_tag_time_is_written_without_trailing_zeros(time_ns: int, expected: str) -> None:
    snapshot = Snapshot.from_json(DOCUMENTS["snapshot_min"].encode(), "s")
    tag = Tag(snapshot=snapshot, create_time_ns=time_ns, time_retained_ns=0)
    text = tag.to_json().decode()
    assert f'"tagCreateTime" : {expected}' in text
    assert '"tagTimeRetained" : 0.000000000' in text


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("tagCreateTime", "yesterday"),
        ("tagCreateTime", [2024, 13, 1]),
        ("tagTimeRetained", "P"),
        ("tagTimeRetained", "soon"),
        ("tagTimeRetained", [1]),
    ],
)
def test_unreadable_tag_time_is_named_with_the_path(member: str, value: object) -> None:
    with pytest.raises(DataError, match=f"tag-t: member '{member}'"):
        Tag.from_json(changed("tag_plain", **{member: value}), "tag-t")


def test_torn_consumer_names_its_path() -> None:
    with pytest.raises(DataError, match="consumer-x: member 'nextSnapshot'"):
        Consumer.from_json(b"{}", "consumer-x")


@pytest.mark.parametrize("path", SAMPLE_SNAPSHOTS, ids=lambda path: "-".join(path.parts[-3::2]))
def test_sample_snapshot_survives_a_round_trip(path: Path) -> None:
    snapshot = Snapshot.from_json(path.read_bytes(), str(path))
    assert f"snapshot-{snapshot.id}" == path.name
    assert Snapshot.from_json(snapshot.to_json(), "again") == snapshot
    members = json.loads(path.read_bytes())
    members.pop("logOffsets", None)
    written = json.loads(unsealed(snapshot.to_json()))
    assert written == {name: value for name, value in members.items() if value is not None}


@pytest.mark.parametrize("path", SAMPLE_TAGS, ids=lambda path: path.name)
def test_sample_tag_survives_a_round_trip(path: Path) -> None:
    tag = Tag.from_json(path.read_bytes(), str(path))
    assert Tag.from_json(tag.to_json(), "again") == tag
    assert tag.snapshot == Snapshot.from_json(path.read_bytes(), str(path))


def test_samples_are_there() -> None:
    assert (len(SAMPLE_SNAPSHOTS), len(SAMPLE_TAGS)) == (73, 3)


def made(number: int, properties: dict[str, str] | None) -> Snapshot:
    whole = Snapshot.from_json(DOCUMENTS["snapshot_full"].encode(), "snapshot-7")
    return replace(whole, id=number, delta_manifest_list=f"list-{number}", properties=properties)


def test_snapshot_follows_the_one_that_it_names_and_no_other() -> None:
    first = made(1, None)
    assert first.base is None
    assert is_based_on(made(2, {BASE_PROPERTY: "list-2 list-1"}), first)
    assert not is_based_on(made(2, {BASE_PROPERTY: "list-2 list-0"}), first)
    assert is_based_on(made(2, None), first)  # of another engine, which says nothing


def test_base_that_was_copied_from_another_snapshot_says_nothing() -> None:
    assert made(3, {BASE_PROPERTY: "list-2 list-1"}).base is None
