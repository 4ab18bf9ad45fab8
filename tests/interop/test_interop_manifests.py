"""Manifests that were merged tell everybody of the same files."""

from __future__ import annotations

import pytest
from interop_judges import Judge, assert_reads_alike, write_with
from interop_values import field, typed

import keytide as kt


@pytest.mark.one_in(14)
def test_interop_merged_manifests_read_alike(judge: Judge, lake: kt.Lake) -> None:
    columns = [field("k", "INT NOT NULL"), field("v", "STRING"), field("p", "INT NOT NULL")]
    table = lake.create_table(
        "db.t", columns, ["k", "p"], ["p"],
        {"manifest.merge-min-count": "2", "num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    for n in range(4):
        table.write(typed(table, f"+I {n} a{n} 1", f"-D {n} x 2", f"+I 9 b{n} 2"))
        write_with(judge, table, typed(table, f"+I {n} c{n} 2").drop_columns(["_row_kind"]))
        assert_reads_alike(judge, table)
    lake.sql("CALL sys.compact_manifest('db.t')")
    assert len(table.metadata.base_manifests(table.scan().snapshot)) == 1
    assert_reads_alike(judge, table)
    write_with(judge, table, typed(table, "+I 5 d 1").drop_columns(["_row_kind"]))
    assert_reads_alike(judge, table)
