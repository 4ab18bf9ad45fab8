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
from keytide.changes import diff
from keytide.format.data_file import FileReader
from keytide.format.snapshot import CommitKind
from keytide.read import lookup
from keytide.read.lookup_files import LookupFiles
from table_rows import rows

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


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> LookupFiles:
    """The lookup files of this test alone."""
    mine = LookupFiles()
    monkeypatch.setattr(lookup, "LOOKUP_FILES", mine)
    return mine


KEYS: Sequence[Sequence[str]] = [["id"], ["s", "id"], ["s"]]


@pytest.mark.takes_turns
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.sampled_from(TABLES),
    key=st.sampled_from(KEYS),
    commits=st.lists(ROWS, min_size=1, max_size=4),
)
def test_changes_are_the_same_streamed_and_looked_up_in_small_and_in_large_files(
    options: dict[str, str],
    key: Sequence[str],
    commits: list[dict[int, int | None]],
    tmp_path_factory: Any,
) -> None:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    table = lake.create_table("t", SCHEMA, key, options={"bucket": "1", **options})
    table.write(written(dict.fromkeys(range(30), 0)))
    table.compact(full=True)
    for changed in commits:
        table.write(written(changed))
    ids = [snapshot.id for snapshot in table.snapshots()]
    spans = [*pairwise(ids), (ids[0], ids[-1])]

    def all_told() -> list[Any]:
        return [rows(table.changes(*span)) for span in spans]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(diff, "rows_in", lambda *_: 0)  # nothing fits in memory
        streamed = all_told()
    for at_once in (0, 1 << 18):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lookup, "LOOKUP_FILES", files := LookupFiles())
            patched.setattr(lookup, "_AT_ONCE_ROWS", at_once)
            assert [all_told() for _ in range(3)] == [streamed] * 3
        assert len(files._files) > 0 or "deletion-vectors.enabled" in options


def test_one_look_at_both_snapshots_lays_no_large_file_out(
    tmp_path: Path, files: LookupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_AT_ONCE_ROWS", 2)
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["id"])
    table.write(written(dict.fromkeys(range(30), 0)))
    table.write(written({7: 1}))

    def laid_out_files() -> int:
        assert rows(table.changes(1, 2)) == [("+U", 7, "s1", 1), ("-U", 7, "s1", 0)]
        return len(files._files)

    assert [laid_out_files() for _ in range(3)] == [1, 2, 2]


def test_each_file_is_read_once_for_both_snapshots_and_never_again(
    tmp_path: Path, files: LookupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    real = FileReader.lazy

    def lazy(self: FileReader, *where: Any, **how: Any) -> pl.LazyFrame:
        read.append(self.path)
        return real(self, *where, **how)

    monkeypatch.setattr(FileReader, "lazy", lazy)
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["id"], options={"write-only": "true"})
    table.write(written(dict.fromkeys(range(30), 0)))
    for value in (1, 2):
        table.write(written({7: value, 8: value}))

    def files_read(start: int) -> tuple[int, int]:
        read.clear()
        assert len(rows(table.changes(start, start + 1))) == 4
        return len(read), len(set(read))

    assert files_read(2) == (3, 3)
    assert files_read(2) == (0, 0)
    table.write(written({7: 3, 8: 3}))
    assert files_read(3) == (1, 1)


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
    assert rows(table.changes(3, 6)) == [("+U", 7, "s1", 2), ("-U", 7, "s1", 1)]
    assert rows(table.changes(1, 6)) == [("+U", 7, "s1", 2), ("-U", 7, "s1", 0)]
    assert rows(table.changes(5, 6)) == []
