"""Changes of tables with an index of keys: rows that died in a commit, and rows that came."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import keytide as kt
from keytide.changes.diff import IndexedDiffTask
from new_tables import dotted
from table_rows import rows

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
Rows = list[tuple[object, ...]]


def filled(folder: Path, **options: str) -> kt.Table:
    """Keys 0 to 1999, of which 500 were upserted twice and 100 deleted then."""
    options = {"upsert.mode": "full", **dotted(options)}
    table = kt.connect(folder).create_table("t", SCHEMA, ["k"], options=options)
    for keys, value in ((range(2000), "a"), (range(500), "b"), (range(500), "c")):
        table.write(pa.table({"k": keys, "v": [value] * len(keys)}, schema=SCHEMA))
    table.delete("k < 100")
    return table


def test_changes_are_the_same_in_little_memory(tmp_path: Path) -> None:
    much, little = filled(tmp_path / "much"), filled(tmp_path / "little", read__memory="16 kb")
    expected = sorted((kind, k, v) for k in range(500) for kind, v in (("-U", "b"), ("+U", "c")))
    for table in (much, little):
        assert rows(table.changes(2, 3)) == expected
        assert rows(table.changes(3, 4)) == sorted(("-D", k, "c") for k in range(100))


def test_rows_that_died_in_earlier_commits_are_not_counted(tmp_path: Path) -> None:
    table = filled(tmp_path)
    (task,) = table.changes(3, 4).tasks()
    assert isinstance(task, IndexedDiffTask)
    assert sum(read.rows for read in task.removed_rows) == 100
