"""Files that are not of the table's own format: the table's view brings what reads them.

Somebody else's Parquet files lie in a folder. They have a key and a watermark, and nothing else
that a merge asks for: rows come in any order, a key more than once, without numbers or kinds. Their
reader makes sorted versions of them, of which the table's engine keeps the one of the latest
watermark.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.base.row_kind import RowKind
from keytide.format.binary_row import encode_rows
from keytide.format.data_file import VALUE_KIND, WHOLE_FILE, FileReader, Span
from keytide.format.manifest_entry import DataFileMeta, Entries, FileKind, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.stats import EMPTY_STATS
from keytide.options import TableOptions
from keytide.options.keys import EXTERNAL_PATHS
from keytide.predicate.condition import predicate_of
from keytide.read.requests import narrowed_scan
from keytide.read.scan import Scan
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import OWN_FILES, TableState, TableView
from keytide.store import Store, open_store
from keytide.write.refusals import check_writable
from new_tables import fields_of

KEY = ["name", "n"]
TYPES = {"name": "STRING NOT NULL", "n": "INT NOT NULL", "at": "BIGINT", "v": "DOUBLE"}
POLARS_TYPES = {"name": pl.String, "n": pl.Int32, "at": pl.Int64, "v": pl.Float64}
INSERTS = (VALUE_KIND, pl.Series([RowKind.INSERT], dtype=pl.Int8))
REMOVED = "whoever owns the folder removed it"

Row = tuple[str, int, int, float]


# -- the files -------------------------------------------------------------------------------------


class FolderReader(FileReader):
    """The row with the latest watermark of each key of a file, in the order of the key."""

    def lazy(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.LazyFrame:
        key = list(self.file_schema.primary_keys)
        watermark = TableOptions.parse(self.file_schema.options).sequence_field
        deciding = self.file_schema.select([*key, *watermark])
        stored = replace(
            self,
            fields=tuple({f.name: f for f in (*deciding, *self.fields)}.values()),
            constants=(*self.constants, INSERTS),
        )
        rows = FileReader.lazy(stored).sort([*key, *watermark], maintain_order=True)
        newest = rows.unique(key, keep="last", maintain_order=True).slice(offset, length)
        frame = newest.select(*(f.name for f in self.fields), *self.system_columns)
        return frame if where is None else frame.filter(where)

    def spans(self, rows_max: int) -> list[Span]:
        # There is no way to sort a part of a file.
        return [WHOLE_FILE]

    def groups(self, names: Collection[str] = ()) -> pl.DataFrame:
        return pl.DataFrame({"rows": [sum(self._group_rows())], "offset": [0]})


@dataclass(frozen=True)
class FolderFiles:
    """Parquet files in a folder of somebody else's."""

    reader: ClassVar[type[FileReader]] = FolderReader
    are_plain: ClassVar[bool] = False
    why_not_writable: ClassVar[str] = "its files belong to whoever owns the folder; write there"

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> kt.DataError | None:
        return kt.DataError(f"table {table}: {reason}. Perhaps {REMOVED}; list it again")


# -- a table of them -------------------------------------------------------------------------------


def definition() -> TableSchema:
    fields = fields_of(TYPES)
    options = {"sequence.field": "at", "bucket": "1"}
    return TableSchema.create(fields, primary_keys=KEY, options=options)


def folder_scan(folder: Path) -> Scan:
    schema = replace(definition(), id=0)
    schema = replace(schema, options={**schema.options, EXTERNAL_PATHS: folder.as_uri()})
    options = TableOptions.parse(schema.options)
    store = open_store(str(folder))
    view = TableView(store, "folder", schema, {0: schema}, options, files=FolderFiles())
    paths = sorted(folder.glob("*.parquet"))
    entries = [entry_of(path, number, schema) for number, path in enumerate(paths)]
    live = LiveFiles(None, {}, {}, Entries.of(entries))
    return Scan(TableState(view, live), schema.names)


def entry_of(path: Path, number: int, schema: TableSchema) -> ManifestEntry:
    """A file of the folder as a plan knows files: `number` is higher than those of older files."""
    rows = pl.read_parquet(path, columns=KEY).sort(KEY)
    ends = pl.concat([rows[:1], rows[-1:]]).to_arrow()
    low, high = encode_rows(ends.columns, [f.type for f in schema.trimmed_primary_key_fields()])
    (no_partition,) = encode_rows([], [])
    meta = DataFileMeta(
        file_name=path.name, file_size=path.stat().st_size, row_count=rows.height,
        min_key=low, max_key=high, key_stats=EMPTY_STATS, value_stats=EMPTY_STATS,
        min_sequence_number=number, max_sequence_number=number, schema_id=0, level=0,
        external_path=path.as_uri(),
    )  # fmt: skip
    return ManifestEntry(FileKind.ADD, no_partition, 0, 1, meta)


def put(folder: Path, *files: Sequence[Row]) -> None:
    for number, rows in enumerate(files):
        frame = pl.DataFrame(rows, schema=POLARS_TYPES, orient="row")
        frame.write_parquet(folder / f"{number}.parquet", row_group_size=100)


def newest(files: Iterable[Sequence[Row]]) -> list[Row]:
    found: dict[tuple[str, int], Row] = {}
    for row in (row for rows in files for row in rows):
        if row[:2] not in found or row[2] >= found[row[:2]][2]:
            found[row[:2]] = row
    return sorted(found.values())


def read(scan: Scan) -> list[Row]:
    return sorted(tuple(row[name] for name in TYPES) for row in scan.to_pylist())


def where(scan: Scan, condition: str) -> Scan:
    return narrowed_scan(scan, None, predicate_of(condition, scan.view.schema.fields, "folder"))


# -- reading ---------------------------------------------------------------------------------------

ROWS = st.tuples(
    st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 3), st.integers(0, 9).map(float)
)


@given(files=st.lists(st.lists(ROWS, min_size=1, max_size=12), max_size=4))
def test_one_row_of_a_key_is_read_of_all_files(files: list[list[Row]]) -> None:
    with TemporaryDirectory() as folder:
        put(Path(folder), *files)
        scan, expected = folder_scan(Path(folder)), newest(files)
        assert read(scan) == expected
        assert scan.count() == len(expected)
        assert read(where(scan, "v > 4")) == [row for row in expected if row[3] > 4]
        assert read(where(scan, "n = 2")) == [row for row in expected if row[1] == 2]
        key = "name = 'a' AND n IN (1, 2)"
        assert read(where(scan, key)) == [r for r in expected if r[0] == "a" and r[1] in (1, 2)]


def test_large_files_are_merged_by_tasks_that_pickle(tmp_path: Path) -> None:
    random.seed(7)
    files = [
        [(random.choice("abc"), random.randrange(9000), random.randrange(99), random.random())
         for _ in range(20_000)]
        for _ in range(3)
    ]  # fmt: skip
    put(tmp_path, *files)
    scan = folder_scan(tmp_path)
    explained = scan.explain()
    assert (explained.files_raw, explained.files_merged) == (0, 3)
    tasks = pickle.loads(pickle.dumps(scan.tasks()))
    found = [frame for task in tasks for frame in task.frames(1 << 20)]
    assert sorted(pl.concat(found).rows()) == newest(files)


def test_missing_file_is_explained_as_its_kind_has_it(tmp_path: Path) -> None:
    put(tmp_path, [("a", 1, 1, 1.0)], [("a", 2, 1, 1.0)])
    scan = folder_scan(tmp_path)
    (tmp_path / "1.parquet").unlink()
    for read_all in (scan.to_arrow, scan.to_polars, scan.count, lambda: list(scan.to_batches())):
        with pytest.raises(kt.DataError, match=rf"1\.parquet.*{REMOVED}"):
            read_all()


def test_tables_of_such_files_are_not_written_to(tmp_path: Path) -> None:
    put(tmp_path, [("a", 1, 1, 1.0)])
    view = folder_scan(tmp_path).view
    with pytest.raises(kt.UnsupportedError, match="its files belong to whoever owns the folder"):
        check_writable(view)
    check_writable(replace(view, files=OWN_FILES))


# -- Spark, without a session ----------------------------------------------------------------------


def test_spark_leaves_such_files_to_the_reader_of_the_table(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from keytide.spark.read_plans import split_scan

    put(tmp_path, [("a", 1, 1, 1.0), ("a", 1, 2, 2.0)], [("b", 1, 1, 1.0)])
    scan = folder_scan(tmp_path)
    split = split_scan(scan)
    assert (split.plain, len(split.tasks)) == ({}, 2)
    rows = pl.concat([frame for task in split.tasks for frame in task.frames(1 << 20)])
    assert sorted(rows.rows()) == [("a", 1, 2, 2.0), ("b", 1, 1, 1.0)]
    own = replace(scan, state=replace(scan.state, view=replace(scan.view, files=OWN_FILES)))
    ((files,), tasks) = split_scan(own).plain.values(), split_scan(own).tasks
    assert (len(files), tasks) == (2, [])


def test_file_that_spark_misses_is_explained_as_its_kind_has_it(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from keytide.spark.error_translation import missing_file_error, pin

    put(tmp_path, [("a", 1, 1, 1.0)])
    pin([f"file://{tmp_path}"], folder_scan(tmp_path).view, ())
    path = (tmp_path / "0.parquet").as_uri()
    (tmp_path / "0.parquet").unlink()
    error = missing_file_error(f"[FAILED_READ_FILE.FILE_NOT_EXIST] while reading file {path}. ")
    assert error is not None
    assert REMOVED in str(error)
