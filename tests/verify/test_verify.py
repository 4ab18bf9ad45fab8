"""Verification: sound tables are found sound, and every damage is told with its file."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.table.test_samples import EXPECTED, SAMPLES, open_sample

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.format.index_files import write_vectors
from keytide.format.manifest_entry import DataFileMeta, FileKind, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.format.stats import SimpleStats
from keytide.write.task import TaskResult
from publishing import publish

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("s", pa.string())])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two partitions and buckets, four snapshots and two schemas, with a tag."""
    folder = tmp_path_factory.mktemp("sound")
    lake = kt.connect(folder)
    table = lake.create_table("t", SCHEMA, ["p", "k"], partition_by=["p"], options={"bucket": "2"})
    table.write([{"p": "ab"[k % 2], "k": k, "s": f"{k}"} for k in range(40)])
    table.write([{"p": "a", "k": k, "_row_kind": "-D"} for k in range(0, 10, 2)])
    lake.sql("ALTER TABLE t ADD COLUMN n INT")
    table.write([{"p": "b", "k": k, "s": None, "n": k} for k in range(1, 9, 2)])
    table.write([{"p": "b", "k": k, "s": "x", "n": None} for k in range(1, 9)])
    snapshot = next(folder.glob("**/snapshot-2"))
    (snapshot.parents[1] / "tag").mkdir()
    shutil.copy(snapshot, snapshot.parents[1] / "tag/tag-second")
    return folder


def opened(folder: Path) -> kt.Table:
    return kt.connect(folder).table("t")


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return next(to.glob("*/t"))


# -- sound tables --------------------------------------------------------------------------------


def test_sound_table_is_healthy_and_all_of_it_was_looked_at(sound: Path) -> None:
    found = opened(sound).verify()
    assert (found.findings, found.unchecked, found.is_healthy) == ((), (), True)
    # The tag is a copy of the second snapshot.
    assert (found.snapshots, found.files, found.rows) == (4, 10, 57)


def test_quick_look_reads_no_rows(sound: Path) -> None:
    found = opened(sound).verify(quick=True)
    assert (found.is_healthy, found.files, found.rows) == (True, 10, 0)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", EXPECTED)
def test_tables_of_other_writers_are_healthy(name: str) -> None:
    found = open_sample(name).verify()
    assert (found.findings, found.unchecked) == ((), ())
    assert found.files > 0


def test_table_that_nobody_wrote_to_is_healthy(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"])
    assert table.verify() == kt.Verification(table.name, 0, 0, 0, ())


KEYS: dict[str, st.SearchStrategy[Any]] = {
    "BIGINT": st.integers(-5, 5),
    "STRING": st.text(max_size=3),
    "DOUBLE": st.floats(allow_subnormal=False),
    "DECIMAL(5, 1)": st.decimals(-9, 9, places=1),
    "BOOLEAN": st.booleans(),
    "TIMESTAMP(9)": st.integers(0, 9),
    "BYTES": st.binary(max_size=2),
}
ENGINES = ["deduplicate", "partial-update", "aggregation", "first-row"]


@given(data=st.data())
def test_any_table_that_is_written_verifies(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    types = [data.draw(st.sampled_from(list(KEYS))) for _ in range(2)]
    engine = data.draw(st.sampled_from(ENGINES))
    is_partitioned = data.draw(st.booleans())
    options = {"bucket": data.draw(st.sampled_from("13")), "merge-engine": engine}
    options["metadata.stats-mode"] = data.draw(st.sampled_from(["full", "counts", "truncate(2)"]))
    lake = kt.connect(tmp_path_factory.mktemp("any"))
    partition = "PARTITIONED BY (p)" if is_partitioned else ""
    given_options = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    lake.sql(
        f"CREATE TABLE t (p INT, k {types[0]}, v {types[1]}, PRIMARY KEY (p, k) NOT ENFORCED) "
        f"{partition} WITH ({given_options})"
    )
    table = lake.table("t")
    row = st.fixed_dictionaries(
        {"p": st.integers(0, 1), "k": KEYS[types[0]], "v": st.none() | KEYS[types[1]]}
    )
    for rows in data.draw(st.lists(st.lists(row, max_size=6), max_size=4)):
        if engine == "deduplicate" and data.draw(st.booleans()):
            rows = [{**each, "_row_kind": "-D"} for each in rows]
        table.write(pa.Table.from_pylist(rows, schema=_arrow(table, rows)))
    found = table.verify()
    assert (found.findings, found.unchecked) == ((), ())


def _arrow(table: kt.Table, rows: list[dict[str, Any]]) -> pa.Schema:
    kinds = [pa.field("_row_kind", pa.string())] if rows and "_row_kind" in rows[0] else []
    return pa.schema([*table.schema, *kinds])


# -- damage --------------------------------------------------------------------------------------


def _edit(path: Path, **members: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | members))


def _flip(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


def _newest(folder: Path, pattern: str) -> Path:
    """A file of the newest commit."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def _drop(pattern: str) -> Callable[[Path], None]:
    return lambda folder: _newest(folder, pattern).unlink()


def _flipped(pattern: str) -> Callable[[Path], None]:
    return lambda folder: _flip(_newest(folder, pattern))


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _lie(
    change: Callable[[DataFileMeta], dict[str, Any]], bucket: int | None = None
) -> Callable[[Path], None]:
    """Damage by a commit whose manifest says of a file what is not true of it."""

    def damage(folder: Path) -> None:
        table = kt.open_table(folder)
        scan = table.scan()
        # One with several rows, of a bucket without another file.
        entry = max(scan.live.entries, key=lambda each: each.file.row_count)
        name = f"data-{uuid4()}-0.parquet"
        place = entry.bucket if bucket is None else bucket
        false = replace(entry, bucket=place, file=replace(entry.file, file_name=name))
        to = folder / scan.view.file_path(false)
        to.parent.mkdir(exist_ok=True)
        shutil.copy(folder / scan.view.file_path(entry), to)
        false = replace(false, file=replace(false.file, **change(false.file)))
        _commit(table, [replace(entry, kind=FileKind.DELETE), false])

    return damage


def _narrow(stats: SimpleStats) -> SimpleStats:
    return replace(stats, min_values=stats.max_values)


def _commit(table: kt.Table, entries: list[ManifestEntry]) -> None:
    change = Change(TaskResult(tuple(entries)), Author.fresh(), CommitKind.OVERWRITE)
    publish(table, table.scan().view, change, table.scan().live)


def _overlap(folder: Path) -> None:
    table = kt.open_table(folder)
    scan = table.scan()
    entry = max(scan.live.entries, key=lambda each: each.file.row_count)
    added = []
    for _ in range(2):
        name = f"data-{uuid4()}-0.parquet"
        again = replace(entry, file=replace(entry.file, file_name=name, level=3))
        shutil.copy(folder / scan.view.file_path(entry), folder / scan.view.file_path(again))
        added.append(again)
    _commit(table, added)


def _back_and_forth(folder: Path) -> None:
    """Commits that put a file onto another level and back, with what deletes it still there."""
    for _ in range(2):
        table = kt.open_table(folder)
        entry = min(table.scan().live.entries, key=lambda each: each.file.file_name)
        level = 4 if entry.file.level != 4 else 0
        moved = replace(entry, file=replace(entry.file, level=level))
        _commit(table, [replace(entry, kind=FileKind.DELETE), moved])


def _snapshot(number: int, **members: Any) -> Callable[[Path], None]:
    return lambda folder: _edit(folder / f"snapshot/snapshot-{number}", **members)


def _consumer(folder: Path) -> None:
    (folder / "consumer").mkdir()
    (folder / "consumer/consumer-c").write_text('{"nextSnapshot": 0}')


def _hint(folder: Path) -> None:
    (folder / "snapshot/LATEST").write_text("7")


def _stray_schema(folder: Path) -> None:
    _edit(folder / "schema/schema-1", highestFieldId=2)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "data file lost": (_drop("**/*.parquet"), r"\.parquet: missing"),
    "data file cut off": (
        lambda folder: _cut_off(_newest(folder, "**/*.parquet")),
        r"\.parquet: [\d,]+ bytes found, but [\d,]+ recorded",
    ),
    "data file changed": (_flipped("**/*.parquet"), r"\.parquet: damaged or not Parquet"),
    "manifest lost": (_drop("manifest/manifest-[0-9a-f]*-*"), "manifest/manifest-.*: missing"),
    "manifest changed": (_flipped("manifest/manifest-[0-9a-f]*-*"), "manifest/manifest-"),
    "manifest list lost": (_drop("manifest/manifest-list-*"), "manifest-list-.*: missing"),
    "manifest list changed": (_flipped("manifest/manifest-list-*"), "manifest/manifest-list-"),
    "snapshot lost in between": (_drop("snapshot/snapshot-3"), "snapshot/snapshot-3: missing"),
    "newest snapshot lost": (_drop("snapshot/snapshot-4"), "LATEST: it names snapshot 4"),
    "snapshot torn": (lambda f: _cut_off(f / "snapshot/snapshot-4"), "snapshot/snapshot-4: "),
    "rows counted wrong": (_snapshot(4, totalRecordCount=7), "totalRecordCount is 7"),
    "changes counted wrong": (_snapshot(4, deltaRecordCount=7), "deltaRecordCount is 7"),
    "snapshot of another number": (_snapshot(3, id=8), "member 'id' is 8"),
    "schema of a snapshot lost": (_snapshot(4, schemaId=5), "schema/schema-5: missing or damaged"),
    "schema lost in between": (_drop("schema/schema-0"), "schema/schema-0: missing"),
    "schema with ids beyond its own": (_stray_schema, "schema/schema-1: highestFieldId is 2"),
    "tag changed": (
        lambda folder: _edit(folder / "tag/tag-second", commitUser="x"),
        "tag-second: it differs",
    ),
    "hint beyond the newest": (_hint, "LATEST: it names snapshot 7, which does not exist"),
    "consumer before the oldest": (_consumer, "consumer-c: its next snapshot is 0"),
    "rows of a file": (_lie(lambda f: {"row_count": 99}), r"rows: \d+; expected: 99"),
    "key range": (_lie(lambda f: {"min_key": f.max_key}), "keys from k = .* as the manifest says"),
    "numbers": (_lie(lambda f: {"max_sequence_number": 99}), "highest sequence number: .*99"),
    "deletes": (_lie(lambda f: {"delete_row_count": 2}), "update-before rows: 0; expected: 2"),
    "NULLs": (
        _lie(lambda f: {"value_stats": replace(f.value_stats, null_counts=(0, 0, 5, 0))}),
        r"NULLs of column 's': \d+; expected: 5",
    ),
    "smallest values": (
        _lie(lambda f: {"value_stats": _narrow(f.value_stats)}),
        "column 's' has .* as statistics say",
    ),
    "bucket": (_lie(lambda f: {}, bucket=1), r"rows? of bucket 0 and others; .* bucket 1 of 2"),
    "size": (_lie(lambda f: {"file_size": 5}), "but 5 recorded"),
    "file added again by a name that is deleted": (_back_and_forth, "do not see its rows"),
    "levels": (_overlap, "overlap on level 3 of bucket"),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_with_its_file(name: str, sound: Path, tmp_path: Path) -> None:
    damage, expected = DAMAGES[name]
    folder = copied(sound, tmp_path)
    table = kt.open_table(folder)
    damage(folder)

    found = table.verify()

    assert not found.is_healthy
    told = "\n".join(map(str, found.findings))
    assert re.search(expected, told), told
    assert all(each.way_out and each.expected for each in found.findings)


# -- index files ---------------------------------------------------------------------------------


def _vectors(folder: Path, rows: list[int]) -> None:
    """Other deletion vectors of the same length for all files."""
    (index,) = kt.open_table(folder).metadata.index_files(_newest_snapshot(folder))
    assert index.ranges
    data, _ = write_vectors({place.data_file_name: BitMap(rows) for place in index.ranges})
    (folder / "index" / index.file_name).write_bytes(data)


def _newest_snapshot(folder: Path) -> Snapshot:
    snapshot = kt.open_table(folder).metadata.latest_snapshot()
    assert snapshot is not None
    return snapshot


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda f: _vectors(f, [9_000, 9_500, 9_999]),
            "row 9999 of .* is marked as deleted; expected: rows below",
        ),
        (_drop("index/*"), "index/.*: missing"),
        (_drop("manifest/index-manifest-*"), "manifest/index-manifest-.*: missing"),
        (_flipped("index/*"), "index/.*"),
    ],
    ids=["beyond the rows", "lost", "list lost", "changed"],
)
def test_damaged_deletion_vectors_are_told(
    damage: Callable[[Path], None], expected: str, tmp_path: Path
) -> None:
    shutil.copytree(SAMPLES / EXPECTED["m_dv"]["table"], tmp_path, dirs_exist_ok=True)
    table = kt.open_table(tmp_path)
    damage(tmp_path)
    told = "\n".join(map(str, table.verify().findings))
    assert re.search(expected, told), told


def test_key_that_two_compacted_files_show_is_told(tmp_path: Path) -> None:
    """Readers of deletion vectors merge nothing, so a vector that is lost shows a row twice."""
    shutil.copytree(SAMPLES / EXPECTED["m_dv"]["table"], tmp_path, dirs_exist_ok=True)
    table = kt.open_table(tmp_path)
    for snapshot in table.snapshots():
        _edit(tmp_path / f"snapshot/snapshot-{snapshot.id}", indexManifest=None)

    (found,) = table.verify().findings

    assert found.what.startswith("2 rows with the key")


def test_rows_that_live_again_in_an_old_snapshot_are_told(tmp_path: Path) -> None:
    """Of a snapshot behind the newest too, whose rows are not read."""
    options = {"deletion-vectors.enabled": "true"}
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    table = kt.connect(tmp_path).create_table("t", schema, ["k"], options=options)
    for value in "abc":
        table.write([{"k": 1, "v": value}])
    marked = next(s.id for s in table.snapshots() if s.index_manifest)
    assert not table.verify().findings
    _edit(Path(table.uri) / f"snapshot/snapshot-{marked + 1}", indexManifest=None)

    (found,) = table.verify(quick=True).findings

    assert re.search(f"1 row of data-.* exist again .* in snapshot {marked}", found.what)


@pytest.mark.parametrize("merges", ["false", "true"])
def test_delete_that_lost_its_mark_is_told(tmp_path: Path, merges: str) -> None:
    options = {
        "deletion-vectors.enabled": "true", "sequence.field": "s",
        "deletion-vectors.merge-on-read": merges,
    }  # fmt: skip
    schema = pa.schema([("k", pa.int32()), ("s", pa.int32())])
    table = kt.connect(tmp_path).create_table("t", schema, ["k"], options=options)
    table.write([{"k": 1, "s": 1, "_row_kind": "-D"}])
    assert not table.verify().findings
    _edit(Path(table.uri) / "snapshot/snapshot-2", indexManifest=None)

    (found,) = table.verify().findings

    assert found.what == "1 delete visible in snapshot/snapshot-2"


def test_key_that_its_hash_index_lacks_is_told(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / EXPECTED["j_dynamic"]["table"], tmp_path, dirs_exist_ok=True)
    table = kt.open_table(tmp_path)
    hashes = (
        tmp_path / "index" / table.metadata.index_files(_newest_snapshot(tmp_path))[0].file_name
    )
    hashes.write_bytes(bytes(len(hashes.read_bytes())))
    told = "\n".join(map(str, table.verify().findings))
    assert re.search(rf"\.(orc|parquet): \d rows? with keys that are not in {hashes.name}", told), (
        told
    )


# -- any damage ----------------------------------------------------------------------------------


def _shown(table: kt.Table) -> dict[int, Any]:
    """What readers are shown of each snapshot, and of the newest one."""
    shown = {s.id: table.scan(snapshot_id=s.id).to_arrow() for s in table.snapshots()}
    return {number: rows.sort_by([("p", "ascending"), ("k", "ascending")]).to_pylist()
            for number, rows in shown.items()}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_any_file_lost_or_changed_is_told_or_changes_no_row(
    seed: int, sound: Path, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    expected = _shown(opened(sound))
    files = sorted(path.relative_to(sound) for path in sound.glob("**/*") if path.is_file())
    for number, file in enumerate(dice.sample(files, 10)):
        folder = copied(sound, tmp_path / str(number))
        table = kt.open_table(folder)
        damaged = tmp_path / str(number) / file
        is_lost = dice.random() < 0.4
        if is_lost:
            damaged.unlink()
        else:
            changed = bytearray(damaged.read_bytes())
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
            damaged.write_bytes(changed)

        found = table.verify()

        if found.is_healthy:
            shown = _shown(kt.open_table(folder))
            assert shown == {n: expected[n] for n in shown}, file
            assert is_lost or max(shown) == max(expected), file
        else:
            assert any(file.name in each.path for each in found.findings) or is_lost, found
        shutil.rmtree(tmp_path / str(number))
