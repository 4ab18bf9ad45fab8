"""Tables of other engines whose data files lie elsewhere: they are read and verified, a file
that is gone is named, and what deletes files leaves them alone.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from gate_doors import READING, ROWS, WRITING
from keytide.commit.change import Author, Change
from keytide.format import paths
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult
from publishing import publish

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
READS = {
    "to_arrow": lambda table: table.scan().to_arrow(),
    "to_polars": lambda table: table.scan().to_polars(),
    "to_batches": lambda table: list(table.scan().to_batches()),
    "count": lambda table: table.scan().count(),
    "condition": lambda table: table.scan(where="k = 1").to_pylist(),
}


def allowing(table: kt.Table, *folders: str) -> kt.Table:
    """The table after another engine has allowed data files in folders outside of it."""
    schema = table.table_schema
    options = {**schema.options, "data-file.external-paths": ", ".join(folders)}
    told = replace(schema, id=schema.id + 1, options=options)
    table.metadata.store.create(paths.schema_path(told.id), told.to_json())
    return table


def new_table(warehouse: str) -> kt.Table:
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["k"])
    table.write([{"k": 1, "v": "a"}])
    return table


@pytest.mark.parametrize("name", READS)
def test_missing_data_file_outside_of_the_table_is_named(
    name: str, warehouse: str, tmp_path: Path
) -> None:
    table = allowing(new_table(warehouse), f"file://{tmp_path}/elsewhere")
    live = table.stored.newest_files()
    (entry,) = live.entries
    outside = f"file://{tmp_path}/elsewhere/data-1.parquet"
    file = replace(
        entry.file, file_name="data-1.parquet", external_path=outside,
        min_sequence_number=9, max_sequence_number=9,
    )  # fmt: skip
    change = Change(TaskResult((replace(entry, file=file),)), Author.fresh())
    publish(table, writable_view(table.stored), change, live)
    with pytest.raises(kt.DataError, match=r"elsewhere/data-1\.parquet"):
        READS[name](table)


def moved_outside(table: kt.Table, folder: Path, told: str = "file://{0}/elsewhere/{1}") -> Path:
    """Have the one data file of a table lie in a folder outside of it; gives its path there.

    The manifest has it as `told`, with the folder above and the name.
    """
    live = table.stored.newest_files()
    (entry,) = live.entries
    outside = folder / f"outside-{entry.file.file_name}"
    folder.mkdir()
    shutil.copy(Path(table.uri) / table.scan().view.file_path(entry), outside)
    file = replace(
        entry.file, file_name=outside.name, external_path=told.format(folder.parent, outside.name)
    )
    moved = (replace(entry, kind=FileKind.DELETE), replace(entry, file=file))
    change = Change(TaskResult(moved), Author.fresh(), CommitKind.OVERWRITE)
    publish(table, writable_view(table.stored), change, live)
    return outside


@pytest.mark.parametrize("bucket", ["1", "-1"])
def test_data_file_outside_of_the_table_is_verified_and_never_deleted(
    bucket: str, tmp_path: Path
) -> None:
    table = kt.connect(tmp_path / "lake").create_table(
        "t", SCHEMA, ["k"], options={"bucket": bucket}
    )
    table.write([{"k": k, "v": "a"} for k in range(5)])
    allowing(table, "s3://b/x", f"file:{tmp_path}/elsewhere")
    outside = moved_outside(table, tmp_path / "elsewhere")
    table.write([{"k": 2, "v": "b"}])
    found = table.verify()
    assert (found.findings, found.unchecked, found.rows) == ((), (), 11)

    table.compact(full=True)
    table.expire_snapshots(retain_max=1)
    assert outside.exists()
    assert table.verify().is_healthy


@pytest.mark.parametrize("damage", ["lost", "cut off", "changed"])
def test_damaged_data_file_outside_of_the_table_is_told_with_its_place(
    damage: str, tmp_path: Path
) -> None:
    table = allowing(new_table(str(tmp_path / "lake")), f"file://{tmp_path}/elsewhere/")
    outside = moved_outside(table, tmp_path / "elsewhere")
    data = outside.read_bytes()
    changed = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    if damage == "lost":
        outside.unlink()
    else:
        outside.write_bytes(changed if damage == "changed" else data[:-9])
    assert {each.path for each in table.verify().findings} == {f"file://{outside}"}


FORGED = {
    "elsewhere": "file://{0}/secret/{1}",
    "by dots": "file://{0}/allowed/../secret/{1}",
    "in a folder with a longer name": "file://{0}/allowed-evil/{1}",
    "through a link": "file://{0}/allowed/link/{1}",
    "as a link": "file://{0}/allowed/{1}",
    "without a scheme": "{0}/secret/{1}",
    "with a host": "file://localhost/{0}/secret/{1}",
    "in another scheme": "memory://{0}/allowed/{1}",
}
DOORS = {
    **{name: door for name, door in READING.items()
       if name not in ("publish", "verify", "an older snapshot")},
    **{name: WRITING[name] for name in ("delete", "update", "merge", "compact")},
    "changes of the last snapshot": lambda _, t: t.changes(1).to_arrow(),
    "a tag": lambda _, t: [t.create_tag("g"), t.scan(tag="g").to_arrow()],
    "CREATE TABLE AS": lambda lake, t: lake.sql(f"CREATE TABLE copy AS SELECT * FROM {t.name}"),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("place", FORGED)
def test_file_where_the_table_allows_none_is_never_read_or_deleted(
    place: str, tmp_path: Path
) -> None:
    lake = kt.connect(tmp_path / "lake")
    options = {"bucket": "1", "changelog-producer": "input"}
    table = allowing(
        lake.create_table("t", SCHEMA, ["k"], options=options), f"file://{tmp_path}/allowed"
    )
    table.write(ROWS)
    secret = moved_outside(table, tmp_path / "secret", FORGED[place])
    for name in ("allowed", "allowed-evil"):
        (tmp_path / name).mkdir()
    shutil.copy(secret, tmp_path / "allowed-evil" / secret.name)
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "allowed" / secret.name).symlink_to(secret)
    table = kt.connect(tmp_path / "lake").table("t")
    for door, enter in DOORS.items():
        with pytest.raises(kt.KeytideError) as refused:
            enter(lake, table)
        told = "".join(str(refused.value).split())  # commands wrap lines
        assert secret.name in told, door
        assert "data-file.external-paths" in told, door
    assert "is recorded at" in str(table.verify().findings)
    table.truncate()
    table.expire_snapshots(retain_max=1, retain_min=1)
    table.remove_orphan_files(dry_run=False)
    lake.drop_table("t")
    assert secret.exists()
    assert len(list((tmp_path / "allowed-evil").iterdir())) == 1


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.parametrize("place", FORGED)
def test_file_where_the_table_allows_none_is_never_published(
    place: str, format_: str, tmp_path: Path
) -> None:
    options = {"bucket": "1", "publish": format_}
    lake = kt.connect(tmp_path / "lake")
    table = allowing(
        lake.create_table("t", SCHEMA, ["k"], options=options), f"file://{tmp_path}/allowed"
    )
    table.write(ROWS)
    secret = moved_outside(table, tmp_path / "secret", FORGED[place])
    table = lake.table("t")
    [publication] = table.publish()
    assert publication.version is None
    assert secret.name in str(publication.reason)


def test_place_that_an_earlier_definition_allowed_is_read(tmp_path: Path) -> None:
    table = allowing(new_table(str(tmp_path / "lake")), f"file://{tmp_path}/elsewhere")
    moved_outside(table, tmp_path / "elsewhere")
    lake = kt.connect(tmp_path / "lake")
    lake.sql("ALTER TABLE t RESET ('data-file.external-paths')")
    assert lake.table("t").scan().to_pylist() == [{"k": 1, "v": "a"}]


def test_snapshot_that_names_an_older_schema_than_its_files_is_read(tmp_path: Path) -> None:
    """Some writers name the schema that they began with, whatever came meanwhile."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    lake = kt.connect(tmp_path)
    lake.create_table("t", schema, ["k"], options={"write-only": "true"})
    lake.sql("ALTER TABLE t ADD COLUMN n INT")
    lake.sql("INSERT INTO t VALUES (1, 'a', 7)")
    lake.sql("INSERT INTO t VALUES (2, 'b', 8)")
    store = lake.table("t").metadata.store
    snapshot = lake.table("t").metadata.snapshot(1)
    store.put(paths.snapshot_path(1), replace(snapshot, schema_id=0).to_json())
    table = kt.connect(tmp_path).table("t")
    assert table.scan(snapshot_id=1).to_pylist() == [{"k": 1, "v": "a"}]
    assert table.verify().is_healthy
