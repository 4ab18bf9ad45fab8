"""What was done to a table, commit by commit."""

from __future__ import annotations

import pyarrow as pa
import pytest

import keytide as kt

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})


def lived(lake: kt.Lake, primary_key: list[str]) -> kt.Table:
    options = {"bucket": "1"} if primary_key else {}
    table = lake.create_table("shop.t", SCHEMA, primary_key, options=options)
    table.write([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 3, "v": "c"}])
    table.delete("k = 2")
    table.update({"v": "'new'"}, "k = 1")
    table.merge([{"k": 9, "v": "m"}], "target.k = source.k").when_not_matched_insert_all().execute()
    table.compact(full=True)
    table.overwrite([{"k": 5, "v": "o"}])
    table.restore(1)
    table.truncate()
    return table


DONE = ["truncate", "restore", "overwrite", "compaction", "merge", "update", "delete", "write"]


@pytest.mark.parametrize("primary_key", [["k"], []], ids=["keyed", "appended"])
def test_history_tells_what_was_done_by_whom(lake: kt.Lake, primary_key: list[str]) -> None:
    table = lived(lake, primary_key)
    history = table.history()
    assert [entry.operation for entry in history] == DONE
    assert [entry.snapshot_id for entry in history] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [entry.user for entry in history] == [s.commit_user for s in table.snapshots()][::-1]
    assert (history[-1].rows_written, history[-1].rows_deleted) == (3, 0)
    assert history[0].rows_deleted == 3
    assert all(entry.bytes_added > 0 for entry in history if entry.operation in ("write", "update"))
    assert lake.sql("DESCRIBE HISTORY shop.t LIMIT 2").to_pylist() == [
        row for entry in history[:2] for row in entry.to_arrow().to_pylist()
    ]
    assert len(table.history(limit=3)) == 3


def test_history_reads_well(lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"])
    assert repr(table.history()) == "no commits"
    table.write([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}], commit_user="<job>", commit_identifier=1)
    assert "write: 2 rows written, 0 deleted" in repr(table.history())
    assert "<td>&lt;job&gt;</td><td>write</td><td>2</td>" in table.history()._repr_html_()
    with pytest.raises(kt.InvalidError, match="limit is -1"):
        table.history(limit=-1)
