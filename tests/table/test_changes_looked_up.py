"""Changes of few keys: large files are looked up, compactions passed over, rows are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.format.snapshot import CommitKind
from keytide.table.read import lookup_files, runs
from keytide.table.read.lookup_files import LookupFiles

SCHEMA = pl.DataFrame(schema={"id": pl.Int64, "s": pl.String, "v": pl.Int64}).to_arrow().schema
TABLES: Sequence[dict[str, str]] = [
    {},
    {"sequence.field": "v"},
    {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    {"deletion-vectors.enabled": "true"},
]
ROWS = st.dictionaries(st.integers(0, 30), st.integers(0, 99) | st.none(), min_size=1, max_size=8)


def written(changed: dict[int, int | None]) -> list[dict[str, Any]]:
    """A row for each key; without a value a delete."""
    kinds = {key: "-D" if value is None else "+I" for key, value in changed.items()}
    return [
        {"id": key, "s": f"s{key % 3}", "v": value or 0, "_row_kind": kinds[key]}
        for key, value in changed.items()
    ]


def told(table: kt.Table, start: int, end: int) -> list[Any]:
    return sorted(tuple(row.values()) for row in table.changes(start, end).to_pylist())


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=st.sampled_from(TABLES), commits=st.lists(ROWS, min_size=1, max_size=4))
def test_changes_are_the_same_at_first_sight_and_once_files_are_laid_out(
    options: dict[str, str], commits: list[dict[int, int | None]], tmp_path_factory: Any
) -> None:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    table = lake.create_table("t", SCHEMA, ["id"], options={"bucket": "1", **options})
    table.write(written(dict.fromkeys(range(30), 0)))
    table.compact(full=True)
    for changed in commits:
        table.write(written(changed))
    ids = [snapshot.id for snapshot in table.snapshots()]
    spans = [*pairwise(ids), (ids[0], ids[-1])]
    plain = [told(table, *span) for span in spans]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookup_files, "LOOKUP_FILES", files := LookupFiles())
        patched.setattr(runs, "_LOOKED_UP_ROWS", 1)
        patched.setattr(runs, "_LOOKED_UP_SHARE", 0)
        found = [[told(table, *span) for span in spans] for _ in range(3)]
    assert found == [plain] * 3
    assert len(files._files) > 0 or "deletion-vectors.enabled" in options


def test_one_look_at_both_snapshots_lays_no_file_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_files, "LOOKUP_FILES", files := LookupFiles())
    monkeypatch.setattr(runs, "_LOOKED_UP_ROWS", 1)
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["id"])
    table.write(written(dict.fromkeys(range(30), 0)))
    table.write(written({7: 1}))

    def laid_out() -> int:
        assert told(table, 1, 2) == [("+U", 7, "s1", 1), ("-U", 7, "s1", 0)]
        return len(files._files)

    assert [laid_out() for _ in range(3)] == [0, 1, 1]


def test_compactions_before_and_after_a_commit_are_not_read(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["id"], options={"write-only": "true"})
    table.write(written(dict.fromkeys(range(30), 0)))
    for value in (1, 2):
        table.compact(full=True)
        table.write(written({7: value}))
    table.compact(full=True)
    append, compact = CommitKind.APPEND, CommitKind.COMPACT
    kinds = [snapshot.commit_kind for snapshot in table.snapshots()]
    assert kinds == [append, compact, append, compact, append, compact]

    assert table.changes(5, 6).explain().files == 0
    assert table.changes(3, 6).explain().rows == table.changes(4, 5).explain().rows
    assert told(table, 3, 6) == [("+U", 7, "s1", 2), ("-U", 7, "s1", 1)]
    assert told(table, 1, 6) == [("+U", 7, "s1", 2), ("-U", 7, "s1", 0)]
    assert told(table, 5, 6) == []
