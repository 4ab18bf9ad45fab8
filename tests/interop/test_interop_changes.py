"""Other readers tell the changelog that Keytide stored as Keytide tells it, and store theirs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interop_judges import assert_reads_alike
from java_judge import JavaPaimon
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


def counted(changes: kt.Changes) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in changes.to_pylist())


@pytest.mark.parametrize("options", [{}, {"sequence.field": "s"}], ids=["arrival", "sequence"])
def test_stored_changelog_is_read_alike(tmp_path: Path, options: dict[str, str]) -> None:
    table = kt.connect(tmp_path).create_table(
        "d.t", SCHEMA, ["p", "k"], ["p"],
        options={"changelog-producer": "input", "bucket": "2", **options},
    )  # fmt: skip
    write_all(table)
    for start, end in ((0, 3), (1, 2)):
        own = counted(table.changes(start, end, mode="changelog"))
        assert told_by_rust(tmp_path, start, end, "changelog") == own
        assert sum(own.values()) == 12 * (end - start)


# -- changelogs that compactions make --------------------------------------------------------------

PRODUCERS: dict[str, dict[str, str]] = {
    "lookup": {"changelog-producer": "lookup"},
    "vectors": {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
    "full-compaction": {"changelog-producer": "full-compaction"},
}
MERGED: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "sum": {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"},
    "partial-update": {"merge-engine": "partial-update", "ignore-delete": "true"},
}


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("engine", MERGED)
def test_changelog_of_compactions_is_read_alike(
    java: JavaPaimon, lake: kt.Lake, producer: str, engine: str
) -> None:
    table = lake.create_table(
        "d.t", SCHEMA, ["p", "k"], ["p"],
        options={"bucket": "2", **PRODUCERS[producer], **MERGED[engine]},
    )  # fmt: skip
    for number in range(4):
        table.write([{"p": "ab"[i % 2], "k": i, "s": number, "v": f"{number}/{i}"}
                     for i in range(3 * number, 12)])  # fmt: skip
        if engine == "deduplicate":
            table.write([{"p": "a", "k": 2 * number, "s": 0, "v": "x", "_row_kind": "-D"}])
    end = table.snapshots()[-1].id
    for start in (0, 3):
        own = counted(table.changes(start, end, mode="changelog"))
        assert told_by_rust(Path(java.warehouse), start, end, "changelog") == own
        theirs = java.changes("d.t", start)
        assert Counter((kind, *row.values()) for kind, row in theirs) == own


Change = tuple[str, dict[str, Any]]


def fold(held: dict[int, str], changes: Iterable[Change]) -> None:
    """Change rows, each of which must be what a change says that it finds."""
    for kind, row in changes:
        if kind in ("-U", "-D"):
            assert held.pop(row["k"]) == repr(row)
        else:
            assert row["k"] not in held
            held[row["k"]] = repr(row)


a_write = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from(["+I", "+I", "-D"])),
    min_size=1,
    max_size=5,
)
NUMBERS = itertools.count()


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("engine", MERGED)
@settings(
    max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(steps=st.lists(st.tuples(st.booleans(), a_write), min_size=2, max_size=7))
def test_writers_in_turn_make_one_changelog(
    java: JavaPaimon,
    lake: kt.Lake,
    producer: str,
    engine: str,
    steps: list[tuple[bool, list[tuple[int, int, str]]]],
) -> None:
    options = {"bucket": "1", **PRODUCERS[producer], **MERGED[engine]}
    table = lake.create_table(f"d.t{next(NUMBERS)}", SCHEMA.remove(0), ["k"], options=options)
    rows: dict[int, str] = {}
    seen = 0
    for by_java, versions in steps:
        given_rows = pa.table(
            {
                "k": [k for k, _, _ in versions],
                "s": [s for _, s, _ in versions],
                "v": [f"{s}" for _, s, _ in versions],
                "_row_kind": [kind if engine == "deduplicate" else "+I" for *_, kind in versions],
            }
        )
        if by_java:
            java.write(table.name, given_rows)
            if producer == "full-compaction":
                java.compact(table.name)
        else:
            table.write(given_rows)
        told_by_java = java.changes(table.name, seen)
        own = table.changes(seen, mode="changelog").to_pylist()
        changes = [(row.pop("_row_kind"), row) for row in own]
        assert sorted(map(repr, changes)) == sorted(map(repr, told_by_java))
        fold(rows, changes)
        seen = table.snapshots()[-1].id
        assert sorted(rows.values()) == sorted(map(repr, table.scan().to_pylist()))
        assert_reads_alike(java, table)
