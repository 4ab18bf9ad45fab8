"""Read tasks: the sections of one bucket, carried out on the driver or on an executor.

A task is a picklable value with everything it needs. Its frames hold the current schema's
columns, one row per key, deletions and rows outside the predicate left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import polars as pl
import pyarrow as pa

from keytide.format.arrow import polars_schema, to_arrow
from keytide.format.binary_row import decode_rows
from keytide.format.data_file import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    WHOLE_FILE,
    FileReader,
    read_together,
)
from keytide.format.manifest import ManifestEntry
from keytide.merge.order import IS_ADD
from keytide.merge.touched import merge_runs, without_contained
from keytide.merge.windows import Batch, key_windows
from keytide.row_kind import RowKind
from keytide.table.conditions.matching import row_filter
from keytide.table.conditions.predicate import (
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    without_columns,
)
from keytide.table.read.plan import Section, is_out_of_order
from keytide.table.read.prefetch import prefetched
from keytide.table.state.view import TableView
from keytide.types import Field, arrow_schema

__all__ = ["ReadTask"]

_BATCH_ROWS_MIN = 8 << 10
_FILES_MAX = 100
# A window's rows are held about four times: as batches, as slices, concatenated and merged.
_COPIES = 4


@dataclass(frozen=True)
class ReadTask:
    """Reads and merges sections of one bucket.

    `columns` are the table columns wanted, in order; `dead_rows` the positions that deletion
    vectors mark, by file name.
    """

    view: TableView
    partition: bytes
    sections: tuple[Section, ...]
    columns: tuple[str, ...]
    predicate: Predicate | None = None
    dead_rows: Mapping[str, pa.Array] = field(default_factory=dict)
    keeps_kinds: bool = False
    """Whether `+I` and `+U` are told apart, as they are stored."""

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that together with their making fit in about `memory_bytes`."""
        for frame in self.winners(memory_bytes):
            live = _without_retracts(frame)
            if live.height:
                yield live.select(self.columns)

    def winners(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The outcome of every key that meets the predicate, deletions among them.

        Frames hold the columns wanted and `_VALUE_KIND`, perhaps others.
        """
        defaults = self.view.defaults(self._with_predicate_columns(self.columns))
        if defaults:
            yield from self._with_defaults(defaults, memory_bytes)
            return
        yield from self._outcomes(memory_bytes)

    def _outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        for needs_merge, sections in groupby(self.sections, lambda section: section.needs_merge):
            if needs_merge:
                for section in sections:
                    yield from self._merged(section, memory_bytes)
            else:
                files = [entry for section in sections for entry in section.files]
                yield from self._raw(files, memory_bytes)

    def _with_defaults(
        self, defaults: Mapping[str, pa.Scalar], memory_bytes: int
    ) -> Iterator[pl.DataFrame]:
        """Conditions on a column with a default see the default, so they wait for it."""
        columns = self._with_predicate_columns(self.columns)
        fields = self.view.schema.select(columns)
        before = without_columns(self.predicate, defaults)
        bare = replace(self, columns=columns, predicate=before)
        check = None if self.predicate is None else row_filter(self.predicate, fields)
        for frame in bare._outcomes(memory_bytes):
            filled = frame.with_columns(
                pl.col(name).fill_null(pl.lit(pl.Series([value.as_py()], dtype=dtype)).first())
                for name, value in defaults.items()
                for dtype in [frame.schema[name]]
            )
            yield filled if check is None else filled.filter(check)

    def tables(self, memory_bytes: int) -> Iterator[pa.Table]:
        """The same as Arrow tables with the exact types of the columns."""
        schema = arrow_schema(self.view.schema.select(self.columns))
        for frame in self.frames(memory_bytes):
            yield to_arrow(frame, schema)

    def versions(self, entry: ManifestEntry) -> pl.DataFrame:
        """The stored rows of one file that meet the predicate, unmerged.

        With the columns wanted, `_SEQUENCE_NUMBER` and `_VALUE_KIND`, as they are stored.
        """
        fields = self.view.schema.select(self._with_predicate_columns(self.columns))
        where = None if self.predicate is None else row_filter(self.predicate, fields)
        as_stored = replace(self, keeps_kinds=True)
        return as_stored._reader(entry, fields, sequence=True).read(where=where)

    # -- files that need no merge -------------------------------------------------------------

    def _raw(self, files: Sequence[ManifestEntry], memory_bytes: int) -> Iterator[pl.DataFrame]:
        wanted = self._with_predicate_columns(self.columns)
        fields = self.view.schema.select(wanted)
        where = None if self.predicate is None else row_filter(self.predicate, fields)
        for batch in _small_together(files):
            readers = [self._reader(entry, fields, sequence=False) for entry in batch]
            if len(readers) > 1:
                yield read_together(readers, where)
                continue
            (reader,), (entry,) = readers, batch
            rows = max(_BATCH_ROWS_MIN, memory_bytes // _COPIES // _row_bytes(batch, fields))
            whole = entry.file.row_count <= rows
            for span in [WHOLE_FILE] if whole else reader.spans(rows):
                yield reader.read(*span, where)

    # -- overlapping files ---------------------------------------------------------------------

    def _merged(self, section: Section, memory_bytes: int) -> Iterator[pl.DataFrame]:
        order, engine = self.view.order, self.view.engine
        fields = self.view.schema.select(engine.columns(self._with_predicate_columns(self.columns)))
        before, after = self._split_predicate(order.key)
        key_filter = None if before is None else row_filter(before, fields)
        row_check = None if after is None else row_filter(after, fields)
        sized = list(zip(section.runs, _batch_rows(section, fields, memory_bytes), strict=True))
        runs = [self._run_batches(run, rows, fields, section, key_filter) for run, rows in sized]
        # The largest run is most of the reading; its next batch is read while this one is merged.
        sizes = [sum(entry.file.row_count for entry in run) for run in section.runs]
        largest = sizes.index(max(sizes))
        if sizes[largest] > sized[largest][1]:
            runs[largest] = prefetched(runs[largest])
        for window in key_windows(runs, order.key):
            with self.view.reading():
                counted = without_contained(window, section.containing, order.key)
                pieces = merge_runs(counted, order, engine, arrival_decides=section.arrival_decides)
            yield from pieces if row_check is None else (p.filter(row_check) for p in pieces)

    def _run_batches(
        self,
        run: Sequence[ManifestEntry],
        rows: int,
        fields: tuple[Field, ...],
        section: Section,
        key_filter: pl.Expr | None,
    ) -> Iterator[Batch]:
        for entry in run:
            reader = self._reader(entry, fields, sequence=not section.arrival_decides)
            needs_sort = self._is_out_of_order(entry)
            whole = entry.file.row_count <= rows or needs_sort
            spans = [WHOLE_FILE] if whole else reader.spans(rows)
            for span in spans:
                batch = reader.read(*span, key_filter)
                is_last = entry is run[-1] and span is spans[-1]
                yield Batch(self.view.order.sort(batch) if needs_sort else batch, is_last)

    def _is_out_of_order(self, entry: ManifestEntry) -> bool:
        return is_out_of_order(entry, self.view.schema.trimmed_primary_key_fields())

    def _split_predicate(self, key: tuple[str, ...]) -> tuple[Predicate | None, Predicate | None]:
        """Terms that may run before the merge (keys only) and those that must wait."""
        early = frozenset(key) | frozenset(self.view.schema.partition_keys)
        terms = conjuncts(self.predicate)
        before = conjunction(t for t in terms if columns_of(t) <= early)
        after = conjunction(t for t in terms if not columns_of(t) <= early)
        return before, after

    # -- one file -------------------------------------------------------------------------------

    def _reader(
        self, entry: ManifestEntry, fields: tuple[Field, ...], *, sequence: bool
    ) -> FileReader:
        constants = self._partition_constants(fields)
        meta = entry.file
        if meta.level > 0 and meta.delete_row_count == 0 and not self.keeps_kinds:
            # At level 0 some writers record no deletes although there are some.
            constants.append((VALUE_KIND, pl.Series([0], dtype=pl.Int8)))
        if not sequence or meta.min_sequence_number == meta.max_sequence_number:
            constants.append(
                (SEQUENCE_NUMBER, pl.Series([meta.min_sequence_number], dtype=pl.Int64))
            )
        return FileReader(
            store=self.view.store,
            path=self.view.file_path(entry),
            file_schema=self.view.schemas[meta.schema_id],
            fields=fields,
            system_columns=(SEQUENCE_NUMBER, VALUE_KIND),
            constants=tuple(constants),
            dead_rows=self.dead_rows.get(meta.file_name),
        )

    def _partition_constants(self, fields: Sequence[Field]) -> list[tuple[str, pl.Series]]:
        partition_fields = self.view.schema.partition_fields()
        if not partition_fields:
            return []
        arrays = decode_rows([self.partition], [f.type for f in partition_fields])
        types = polars_schema(partition_fields)
        wanted = {f.name for f in fields}
        return [
            (f.name, pl.Series(f.name, array).cast(types[f.name]))
            for f, array in zip(partition_fields, arrays, strict=True)
            if f.name in wanted
        ]

    def _with_predicate_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*columns, *sorted(columns_of(self.predicate)))))


def _small_together(files: Iterable[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    """Files in batches, whose small ones have no more rows together than are read at least."""
    batch: list[ManifestEntry] = []
    rows = 0
    for entry in files:
        if batch and (rows + entry.file.row_count > _BATCH_ROWS_MIN or len(batch) == _FILES_MAX):
            yield batch
            batch, rows = [], 0
        batch.append(entry)
        rows += entry.file.row_count
    if batch:
        yield batch


def _without_retracts(frame: pl.DataFrame) -> pl.DataFrame:
    # Looking at the kinds is far cheaper than filtering a frame that has no retracts.
    kinds = frame[VALUE_KIND]
    has_retracts = ((kinds == RowKind.DELETE) | (kinds == RowKind.UPDATE_BEFORE)).any()
    return frame.filter(IS_ADD) if has_retracts else frame


def _batch_rows(section: Section, fields: Sequence[Field], memory_bytes: int) -> list[int]:
    """Rows to read at a time from each run, so that windows of all runs cover alike key ranges.

    A run that is small beside the memory is read at once: windows then follow the large runs
    only, and there are few of them.
    """
    window_rows = memory_bytes // _COPIES // _row_bytes(section.files, fields)
    sizes = [sum(entry.file.row_count for entry in run) for run in section.runs]
    fair = window_rows // (2 * len(sizes))
    total = max(1, sum(sizes))
    return [max(_BATCH_ROWS_MIN, fair, window_rows * size // total) for size in sizes]


def _row_bytes(files: Sequence[ManifestEntry], fields: Sequence[Field]) -> int:
    """About what a row of these columns takes in memory."""
    rows = max(1, sum(entry.file.row_count for entry in files))
    stored = sum(entry.file.file_size for entry in files) // rows
    types = [f.type.to_arrow() for f in fields]
    fixed = sum(_fixed_bytes(t) for t in types)
    variable = sum(1 for t in types if not _fixed_bytes(t))
    return max(16, fixed + variable * max(24, 2 * stored))


def _fixed_bytes(data_type: pa.DataType) -> int:
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:
        return 0
