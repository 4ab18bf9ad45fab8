"""Tables of other engines whose data files lie elsewhere: they are read and verified, a file
that is gone is named, and what deletes files leaves them alone.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from publishing import publish

import keytide as kt
from keytide.format import paths
from keytide.format.manifest import FileKind
from keytide.format.snapshot import CommitKind
from keytide.table.commit.author import Author
from keytide.table.commit.change import Change
from keytide.table.write.task import Written
from keytide.table.write.writable import writable_view

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
READS = {
    "to_arrow": lambda table: table.scan().to_arrow(),
    "to_polars": lambda table: table.scan().to_polars(),
    "to_batches": lambda table: list(table.scan().to_batches()),
    "count": lambda table: table.scan().count(),
    "condition": lambda table: table.scan(where="k = 1").to_pylist(),
}


def make_table(warehouse: str) -> kt.Table:
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["k"])
    table.write([{"k": 1, "v": "a"}])
    return table


@pytest.mark.parametrize("name", READS)
def test_missing_data_file_outside_of_the_table_is_named(
    name: str, warehouse: str, tmp_path: Path
) -> None:
    table = make_table(warehouse)
    live = table.stored.newest_files()
    (entry,) = live.entries
    outside = f"file://{tmp_path}/elsewhere/data-1.parquet"
    file = replace(
        entry.file, file_name="data-1.parquet", external_path=outside,
        min_sequence_number=9, max_sequence_number=9,
    )  # fmt: skip
    change = Change(Written((replace(entry, file=file),)), Author.fresh())
    publish(table, writable_view(table.stored), change, live)
    with pytest.raises(kt.DataError, match=r"elsewhere/data-1\.parquet"):
        READS[name](table)


def moved_outside(table: kt.Table, folder: Path) -> Path:
    """Have the one data file of a table lie in a folder outside of it; gives its path there."""
    live = table.stored.newest_files()
    (entry,) = live.entries
    outside = folder / f"outside-{entry.file.file_name}"
    folder.mkdir()
    shutil.copy(Path(table.uri) / table.scan().view.file_path(entry), outside)
    file = replace(entry.file, file_name=outside.name, external_path=f"file://{outside}")
    moved = (replace(entry, kind=FileKind.DELETE), replace(entry, file=file))
    change = Change(Written(moved), Author.fresh(), CommitKind.OVERWRITE)
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
    table = make_table(str(tmp_path / "lake"))
    outside = moved_outside(table, tmp_path / "elsewhere")
    data = outside.read_bytes()
    changed = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    if damage == "lost":
        outside.unlink()
    else:
        outside.write_bytes(changed if damage == "changed" else data[:-9])
    assert {each.path for each in table.verify().findings} == {f"file://{outside}"}


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
