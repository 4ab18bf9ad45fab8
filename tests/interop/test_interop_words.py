"""Words and numbers that Keytide stores are words and numbers that Java Paimon knows.

What has a fixed set of values there is tried with all values that Keytide may write.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from interop_judges import RefusedError, assert_reads_alike
from interop_values import field
from java_judge import JavaPaimon

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.format import paths
from keytide.format.checksum import SEAL_KEY
from keytide.format.file_index import BLOOM_FILTER
from keytide.format.index_files import DELETION_VECTORS, HASH
from keytide.format.manifest_entry import FileKind, FileSource
from keytide.format.snapshot import CommitKind, Operation, Snapshot, Tag
from keytide.merge.functions.registry import is_built_in
from keytide.options import SECTIONS, Option, Refused
from keytide.write.task import TaskResult
from own_options import ELSEWHERE
from table_rows import dicts

CORE = "org.apache.paimon.CoreOptions"
OPTIONS = [option for rows in SECTIONS.values() for option in rows]

# Java declares a number and reads a truth value.
DECLARED_OTHERWISE = {"parquet.enable.dictionary"}
# No options of the core there: Keytide's own, as all of `upsert.` are, of the SQL of engines, and
# older names of others.
SINCE_2_0 = {
    "sequence.snapshot-ordering", "deletion-vectors.merge-on-read",
    "write.sequence-number-init-mode",
}  # fmt: skip


def snapshot(**members: Any) -> Snapshot:
    """A snapshot with all members that a commit gives it."""
    given = {
        "id": 7, "schema_id": 0, "uuid": "u", "base_manifest_list": "manifest-list-a",
        "base_manifest_list_size": 1, "delta_manifest_list": "manifest-list-b",
        "delta_manifest_list_size": 1, "changelog_manifest_list": "manifest-list-c",
        "changelog_manifest_list_size": 1, "index_manifest": "index-manifest-a",
        "commit_user": "me", "writer_version": "keytide", "commit_identifier": 3,
        "commit_kind": CommitKind.APPEND, "time_millis": 5, "total_record_count": 1,
        "delta_record_count": 1, "changelog_record_count": 1, "watermark": 4,
        "statistics": "stat-a", "properties": {"a": "b"}, "next_row_id": 0,
    }  # fmt: skip
    return Snapshot(**{**given, **members})


@pytest.mark.parametrize("kind", CommitKind)
def test_interop_java_reads_what_commits_of_each_kind_store(
    java: JavaPaimon, kind: CommitKind
) -> None:
    change = Change(TaskResult(()), Author("me", 1), kind)
    stored = snapshot(commit_kind=kind, operation=change.operation)
    found = java.gateway.paimon.Snapshot.fromJson(stored.to_json().decode())
    assert found.commitKind().name() == kind.value
    theirs = json.loads(found.toJson())
    ours = {name: value for name, value in json.loads(stored.to_json()).items() if name in theirs}
    assert {name: value for name, value in theirs.items() if value is not None} == ours
    assert len(ours) >= KNOWN_MEMBERS[java.name]


KNOWN_MEMBERS = {"java-1.4.2": 20, "java-2.0.0": 22}


def test_interop_java_reads_each_operation(java: JavaPaimon) -> None:
    for operation in (None, *Operation, "COMPACT", "ANALYZE", "?"):
        text = snapshot(operation=operation).to_json().decode()
        assert java.gateway.paimon.Snapshot.fromJson(text).id() == 7
        tag = Tag(snapshot=snapshot(operation=operation), create_time_ns=0).to_json().decode()
        assert java.gateway.paimon.tag.Tag.fromJson(tag).id() == 7


@pytest.mark.parametrize("created", [None, 0, 1_700_000_000_000_000_000, 1_700_000_000_123_456_789])
@pytest.mark.parametrize("retained", [None, 0, 1_000_000_000, 86_400_000_000_001, 10**18])
def test_interop_java_reads_the_times_of_tags(
    java: JavaPaimon, created: int | None, retained: int | None
) -> None:
    tag = Tag(snapshot=snapshot(), create_time_ns=created, time_retained_ns=retained)
    found = java.gateway.paimon.tag.Tag.fromJson(tag.to_json().decode())
    theirs = Tag.from_json(found.toJson().encode(), "a tag of Java")
    assert replace(theirs, snapshot=tag.snapshot) == tag


def test_interop_java_knows_the_numbers_of_manifests(java: JavaPaimon) -> None:
    manifest = java.gateway.paimon.manifest
    for kind in FileKind:
        assert manifest.FileKind.fromByteValue(kind.value).name() == kind.name
    for source in FileSource:
        assert manifest.FileSource.fromByteValue(source.value).name() == source.name
    for kind in kt.RowKind:
        found = java.gateway.paimon.types.RowKind.fromByteValue(kind.value)
        assert found.shortString() == kind.short


def test_interop_java_knows_the_kinds_of_indexes(java: JavaPaimon) -> None:
    paimon = java.gateway.paimon
    assert paimon.index.HashIndexFile.HASH_INDEX == HASH
    vectors = paimon.deletionvectors.DeletionVectorsIndexFile.DELETION_VECTORS_INDEX
    assert vectors == DELETION_VECTORS
    filters = java.gateway.jvm.java.util.ServiceLoader.load(
        class_of(java, "org.apache.paimon.fileindex.FileIndexerFactory")
    )
    each, names = filters.iterator(), set()
    while java.gateway.call(each, "hasNext"):
        names.add(java.gateway.call(java.gateway.call(each, "next"), "identifier"))
    assert BLOOM_FILTER in names


# -- options ---------------------------------------------------------------------------------------


def class_of(java: JavaPaimon, name: str) -> Any:
    return java.gateway.jvm.java.lang.Class.forName(name)


def options_of(java: JavaPaimon) -> dict[str, Any]:
    """The options of tables there, also by their older names."""
    found: dict[str, Any] = {}
    for member in class_of(java, CORE).getFields():
        if member.getType().getName().endswith(".ConfigOption"):
            option = member.get(None)
            keys = [option.key(), *(old.getKey() for old in option.fallbackKeys())]
            found |= dict.fromkeys(keys, option)
    return found


def stored_texts(option: Option) -> Iterator[str]:
    """Values that a table may have; of a set of words all of them."""
    texts = [*option.type.samples, *([] if option.default is None else [option.default])]
    return (text for text in texts if not isinstance(option.use_of(text), Refused))


def test_interop_java_takes_every_value_of_an_option(java: JavaPaimon) -> None:
    known, refused = options_of(java), []
    for option in OPTIONS:
        if option.key not in known or option.key in DECLARED_OTHERWISE:
            continue
        for text in stored_texts(option):
            given = java.gateway.jvm.java.util.HashMap()
            given.put(option.key, text)
            try:
                java.gateway.paimon.options.Options(given).get(known[option.key])
            except Exception as error:
                refused.append((option.key, text, str(error)))
    assert refused == []


def test_interop_java_knows_every_option_that_is_not_told_to_be_elsewhere(java: JavaPaimon) -> None:
    plain = {option.key for option in OPTIONS if not option.has_place}
    plain = {key for key in plain if not key.startswith("upsert.")}
    late = SINCE_2_0 if java.name == "java-1.4.2" else set()
    assert plain - options_of(java).keys() == ELSEWHERE | late


def test_interop_each_merge_function_of_java_has_its_name_here(java: JavaPaimon) -> None:
    kind = "org.apache.paimon.mergetree.compact.aggregate.factory.FieldAggregatorFactory"
    loaded = java.gateway.paimon.factories.FactoryUtil.discoverIdentifiers(
        class_of(java, kind).getClassLoader(), class_of(java, kind)
    )
    names = {*loaded} - {"primary-key"}
    assert {name for name in names if not is_built_in(name)} == set()


# -- codecs ----------------------------------------------------------------------------------------


def codecs() -> list[tuple[str, str]]:
    (option,) = [option for option in OPTIONS if option.key == "file.compression"]
    return list(itertools.product(["parquet", "orc"], option.type.samples))


@pytest.mark.parametrize(("file_format", "codec"), codecs())
def test_interop_java_reads_each_codec(
    java: JavaPaimon, lake: kt.Lake, file_format: str, codec: str
) -> None:
    options = {"bucket": "1", "file.format": file_format, "file.compression": codec}
    columns = [field("k", "INT"), field("v", "STRING")]
    table = lake.create_table("db.t", columns, ["k"], options=options)
    given = [{"k": k, "v": "text " * k} for k in range(50)]
    table.write(given)
    found = dicts(java.read("db.t"))
    assert found == given


# -- snapshots of before ---------------------------------------------------------------------------


def test_interop_java_reads_every_snapshot_and_tag_once_they_are_mended(
    java: JavaPaimon, lake: kt.Lake
) -> None:
    columns = [field("k", "INT NOT NULL"), field("v", "STRING")]
    table = lake.create_table("db.t", columns, ["k"], options={"write-only": "true"})
    for k in range(3):
        table.write([{"k": k, "v": "x"}])
    table.compact(full=True)
    table.create_tag("two", 2)
    store = table.metadata.store
    for path in (*map(paths.snapshot_path, range(1, 5)), paths.tag_path("two")):
        document = {**json.loads(store.read(path)), "operation": "COMPACT"}
        del document[SEAL_KEY]
        store.put(path, json.dumps(document).encode())
    if java.name != "java-1.4.2":
        with pytest.raises(RefusedError, match="COMPACT"):
            java.read("db.t")
    table.mend_snapshots()
    for snapshot_id in range(1, 6):
        assert_reads_alike(java, table, snapshot_id=snapshot_id)
    assert len(assert_reads_alike(java, table, tag="two")) == 2
