"""Another reader tells the changelog that Keytide stored as Keytide tells it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon_rust.datafusion import PaimonCatalog

import keytide as kt

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("s", pa.int64()), ("v", pa.string())])


def write_all(table: kt.Table) -> None:
    """Several versions of a key in one write, all kinds, two partitions and buckets."""
    kinds = ["+I", "-U", "+U", "-D"]
    for number in range(3):
        table.write(
            [
                {"p": "ab"[i % 2], "k": i % 5, "s": 10 * number + i, "v": f"{number}/{i}",
                 "_row_kind": kinds[i % 4 if i > 4 else 0]}
                for i in range(12)
            ]
        )  # fmt: skip


def told_by_rust(warehouse: Path, start: int, end: int, mode: str) -> Counter[tuple[Any, ...]]:
    table = PaimonCatalog({"warehouse": str(warehouse)}).get_table("d.t")
    builder = table.new_read_builder().with_include_row_kind(True)
    splits = builder.new_incremental_scan(start, end, mode).plan().splits()
    batches = builder.new_read().read(splits)
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def told(changes: kt.Changes) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in changes.to_pylist())


@pytest.mark.parametrize("options", [{}, {"sequence.field": "s"}], ids=["arrival", "sequence"])
def test_stored_changelog_is_read_alike(tmp_path: Path, options: dict[str, str]) -> None:
    table = kt.connect(tmp_path).create_table(
        "d.t", SCHEMA, ["p", "k"], ["p"],
        options={"changelog-producer": "input", "bucket": "2", **options},
    )  # fmt: skip
    write_all(table)
    for start, end in ((0, 3), (1, 2)):
        own = told(table.changes(start, end, mode="changelog"))
        assert told_by_rust(tmp_path, start, end, "changelog") == own
        assert sum(own.values()) == 12 * (end - start)
