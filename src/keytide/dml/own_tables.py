"""A lake's own tables for their connectors: handles, row changes and conditions.

- A handle is a table of a lake at one snapshot, and the change of a statement. When it is pickled
  for a worker, parts that only the driver needs are dropped.
- Workers receive inserted, updated and deleted rows. A page source and a merge sink pass them to
  *changes*, which buffer them until the split or the sink ends, write files, and describe these in
  fragments.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.catalog import Catalog
from keytide.commit.transaction import Transaction, discard, remove_strays
from keytide.definition.column_rules import generated_columns, write_default
from keytide.definition.kind import kind_of
from keytide.dml.engine import channel_columns, schema_of
from keytide.dml.fragments import Spool, Told, new_attempt, read_fragments, write_fragment
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    ConnectorMergeSink,
    ConnectorMetadata,
    ConnectorSession,
    ConnectorTableSchema,
    Fragment,
    MergeOperation,
    RowChangeParadigm,
    RowChanges,
    UpdatablePageSource,
)
from keytide.errors import ConnectorError, InvalidError, UnsupportedError
from keytide.format.snapshot import Operation
from keytide.options import keys
from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import Comparison, In, Predicate, conjunction, conjuncts
from keytide.read.lookup import key_range
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import Statement, TableState, TableView
from keytide.snapshot.stored_table import PinnedTable
from keytide.types import AtomicType
from keytide.write.generated_columns import regenerated
from keytide.write.task import TaskResult, WriteTask
from keytide.write.upsert import task_on

# -- table handles ---------------------------------------------------------------------------------


_H = TypeVar("_H", bound="StoredHandle")


@dataclass(frozen=True, kw_only=True)
class ChangedTable(ABC):
    """What workers need to know about a table that a statement changes."""

    has_begun: bool = False
    """Whether a statement has begun to change the table."""
    task: WriteTask | None = None
    """The task that writes files of a table of the lake, None if workers write no files."""
    updated: tuple[str, ...] = ()
    """The columns that an UPDATE sets."""
    cases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The columns that each WHEN clause of a MERGE sets, by its number."""

    @property
    @abstractmethod
    def view(self) -> TableView:
        """The table with the statement's schema."""


@dataclass(frozen=True, kw_only=True)
class ChangedByKey(ChangedTable):
    """The same for a table to which versions of keys are appended.

    A version copies the watermark of the row that it replaces (rule R21). With `statement-time` it
    gets the time at which its statement began, if that is later. If the statement sets the column,
    that value is stored. With `explicit`, a statement must set it.
    """

    began_ns: int | None = None
    """When the statement began, in nanoseconds."""
    gives_keys: bool = False
    """Whether a new row can have the key of a removed row."""
    inserts_new_keys: bool = False
    """Whether the rows that a MERGE inserts have keys that no row has."""
    fresher_by: int = 0
    """The minimum number of ticks by which a new version must be newer than the replaced one.

    0 if the later one of two equal versions wins.
    """

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        return bool(set(self.updated) & set(self.view.schema.primary_keys))

    def refuse_delete(self) -> None:
        """Raise `UnsupportedError` if a delete would have to set the watermark."""
        if self.view.options.dml_watermark == "explicit":
            raise UnsupportedError(
                f"{self}: '{keys.UPSERT_DML_WATERMARK}' is 'explicit', but a DELETE cannot set "
                f"{', '.join(map(repr, self.view.options.watermark_key))}; write rows of kind "
                "-D, or UPDATE a tombstone column"
            )

    def refuse_unset(self, updated: Sequence[str]) -> None:
        """Raise `InvalidError` if an UPDATE does not set a watermark column that it must set."""
        columns = self.view.options.watermark_key
        if self.view.options.dml_watermark == "explicit" and not set(columns) <= set(updated):
            raise InvalidError(
                f"{self}: '{keys.UPSERT_DML_WATERMARK}' is 'explicit', so an UPDATE must set "
                f"{', '.join(map(repr, columns))}"
            )

    def watermarks(
        self, old: pa.RecordBatch, updated: Sequence[str] = ()
    ) -> Mapping[str, pa.Array]:
        """The watermark columns of versions that replace `old`. Empty if they are copied or set."""
        columns = self.view.options.watermark_key
        if self.view.options.dml_watermark != "statement-time" or set(columns) & set(updated):
            return {}
        assert self.began_ns is not None
        (name,) = columns
        type_ = self.view.schema.field(name).type
        assert isinstance(type_, AtomicType)
        # The column's precision.
        step = 10 ** (9 - (type_.precision or 0))
        began = pa.scalar(self.began_ns // step * step, pa.timestamp("ns"))
        ticks = began.cast(pa.timestamp(type_.to_arrow().unit)).cast(pa.int64())
        stored = old.column(name)
        least = pc.add(stored.view(pa.int64()), self.fresher_by)
        return {name: pc.max_element_wise(least, ticks).view(stored.type)}


@dataclass
class CommitProgress:
    """Whether the commit of a statement has begun. Mutable, and on the driver only.

    From then on, the commit cleans up after itself. If its outcome is unknown, a snapshot may refer
    to the statement's files, so a later abort must not delete them.
    """

    has_begun: bool = False


@dataclass(frozen=True)
class StoredHandle(ChangedTable):
    """What the handles of all tables have in common.

    `state` is the state that the commit is based on, and `commit_progress` its progress. Both stay
    on the driver.
    """

    table: PinnedTable
    state: TableState | None
    predicate: Predicate | None = None
    commit_progress: CommitProgress | None = None

    def __str__(self) -> str:
        return f"table {self.table.name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "state": None, "commit_progress": None}

    @property
    def view(self) -> TableView:
        """The table with the statement's schema."""
        return self.base_state.view if self.task is None else self.task.view

    @property
    def base_state(self) -> TableState:
        """The state that the commit is based on. Driver only."""
        assert self.state is not None
        return self.state

    def begin_change(self: _H, updated: Sequence[str] = ()) -> _H:
        """The handle after the statement has begun, with the write task. Driver only."""
        state = self.base_state.in_statement(Statement.new())
        return replace(
            self,
            has_begun=True,
            task=task_on(state).of_statement(),
            commit_progress=CommitProgress(),
            updated=tuple(updated),
        )

    def begin_merge_change(self: _H, cases: Mapping[int, Sequence[str]]) -> _H:
        """The same for a MERGE, with the columns that each WHEN clause sets. Driver only."""
        updated = sorted({name for names in cases.values() for name in names})
        return replace(self.begin_change(updated), cases={n: tuple(s) for n, s in cases.items()})


@dataclass(frozen=True)
class KeyedHandle(StoredHandle, ChangedByKey):
    """A table with a primary key, and the number of its splits."""

    splits: int = 0


@dataclass(frozen=True)
class AppendedHandle(StoredHandle):
    """A table without a key. Merge sinks may have to rewrite the files in `files`."""

    files: Mapping[str, PlannedFile] = field(default_factory=dict)

    @property
    def marks_rows(self) -> bool:
        """Whether removed rows are marked as deleted. Otherwise their files are rewritten."""
        return self.view.options.deletion_vectors_enabled

    @property
    def moves_rows(self) -> bool:
        """Whether rows move to other partitions or buckets."""
        view = self.view
        placing = {*view.schema.partition_keys, *(view.options.bucket_key or ())}
        changed = set(self.updated)
        for column in generated_columns(view.schema, view.options):
            if changed.intersection(column.columns):
                changed.add(column.field.name)
        return bool(changed & placing)


# -- row changes of workers ------------------------------------------------------------------------


def members_of(structs: pa.StructArray) -> pa.RecordBatch:
    """The columns that structs consist of."""
    return pa.record_batch(structs.flatten(), [member.name for member in structs.type])


class Changes(ConnectorMergeSink):
    """The changes of the rows of one split or one sink. As a sink it receives rows of a MERGE."""

    def __init__(self, table: ChangedTable, number: int) -> None:
        self._on, self._number = table, number
        self._made = self._spool()
        self._rows = 0
        self._written: list[TaskResult] = []
        self._attempt = new_attempt()
        self._is_over = False

    @abstractmethod
    def delete(self, row_ids: pa.Array) -> None:
        """Delete rows."""

    @abstractmethod
    def update(
        self, values: Mapping[str, pa.Array], row_ids: pa.Array, updated: Sequence[str]
    ) -> None:
        """Set new values in rows. `updated` are the columns that the statement sets."""

    @abstractmethod
    def insert(self, rows: pa.RecordBatch) -> None:
        """Insert whole rows."""

    @abstractmethod
    def _write(self) -> None:
        """Write files and append them to `_written`."""

    def _facts_and_rows(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        """Facts and rows for fragments, in addition to the files."""
        return iter(())

    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        """See `ConnectorMergeSink`."""
        width = page.num_columns - 3
        for operation in (MergeOperation.DELETE, MergeOperation.UPDATE, MergeOperation.INSERT):
            rows = page.filter(pc.equal(page.column(width), pa.scalar(operation.value, pa.int8())))
            if not rows.num_rows:
                continue
            if operation is MergeOperation.DELETE:
                self.delete(rows.column(width + 2))
            elif operation is MergeOperation.INSERT:
                self.insert(rows.select(range(width)))
            else:
                for case in rows.column(width + 1).unique():
                    some = rows.filter(pc.equal(rows.column(width + 1), case))
                    values = dict(zip(some.schema.names[:width], some.columns[:width], strict=True))
                    updated = self._on.cases[case.as_py()]
                    self.update(values, some.column(width + 2), updated)

    def finish(self) -> Sequence[Fragment]:
        """Write the buffered rows. The fragments name the files and the number of rows."""
        self._refuse_after_end()
        self._is_over = True
        try:
            self._write()
            files = pa.table({"written": pa.array(map(pickle.dumps, self._written), pa.binary())})
            contents = [({"rows": self._rows}, files), *self._facts_and_rows()]
        except BaseException:
            self.abort()
            raise
        self.close()
        return [write_fragment(Told(self._number, self._attempt, *each)) for each in contents]

    def abort(self) -> None:
        """Delete the written files."""
        self._is_over = True
        written, self._written = self._written, []
        if written:
            discard(self._on.view, written)
        self.close()

    def close(self) -> None:
        """Release the buffered rows."""
        self._made.close()

    def _spool(self, parts: int = 1) -> Spool:
        """A spool with the size of a write buffer, or a fraction of it."""
        has_begun = self._on.has_begun
        return Spool(self._on.view.options.write_buffer_bytes // parts if has_begun else 1)

    def _feed(self, part: int, *spools: Spool) -> None:
        """Write the content of spools, if any, as one part of the statement."""
        assert self._on.task is not None
        rows = chain.from_iterable(spool.tables() for spool in spools if spool.rows)
        if any(spool.rows for spool in spools):
            made = self._on.task.feed(rows, part)
            if made is not None:
                self._written.append(made)

    def _image(
        self, values: Mapping[str, pa.Array], old: pa.RecordBatch | None, updated: Sequence[str]
    ) -> pa.RecordBatch:
        """Whole rows from new values and, for other columns, old values.

        Generated columns are computed, except those that the statement sets.
        """
        columns = [
            values[f.name].cast(f.type) if old is None or f.name in values else old.column(f.name)
            for f in self._on.view.schema.arrow_schema()
        ]
        rows = pa.record_batch(columns, list(self._on.view.schema.names))
        return regenerated(rows, self._on.view, updated)

    def _begin(self, row_ids: pa.Array) -> None:
        self._refuse_after_end()
        if row_ids.null_count:
            raise InvalidError(f"{self._on}: a row id is NULL; return the row ids of the pages")

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(f"{self._on}: split {self._number} is already finished or aborted")


class TableSource(UpdatablePageSource):
    """The rows of one split, and their changes."""

    def __init__(
        self, table: ChangedTable, columns: Sequence[ColumnHandle], changes: Changes
    ) -> None:
        self._table, self._columns, self._changes = table, tuple(columns), changes
        self._pages: Iterator[pa.RecordBatch] | None = None

    @abstractmethod
    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        """The rows, and a function that creates their ids.

        `_names` are the table columns to read.
        """

    @property
    def _id_type(self) -> pa.StructType:
        """The type of the row ids, without fields if they are not requested."""
        return next((c.type for c in self._columns if c.name == ROW_ID), pa.struct([]))

    def _names(self, carried: Sequence[str]) -> tuple[str, ...]:
        """The columns to read, including those in row ids, in the table's order."""
        wanted = {*(column.name for column in self._columns), *carried}
        return tuple(name for name in self._table.view.schema.names if name in wanted)

    def get_next_page(self) -> pa.RecordBatch | None:
        """See `ConnectorPageSource`."""
        self._pages = self._pages or self._all_pages()
        return next(self._pages, None)

    def _all_pages(self) -> Iterator[pa.RecordBatch]:
        schema = schema_of(self._columns)
        for rows, ids in self._read():
            made = [ids(c.type) if c.name == ROW_ID else rows.column(c.name) for c in self._columns]
            yield pa.record_batch(made, schema=schema)

    def delete_rows(self, row_ids: pa.Array) -> None:
        """See `UpdatablePageSource`."""
        self._changes.delete(row_ids)

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        """See `UpdatablePageSource`."""
        updated = self._table.updated
        *values, ids = channel_columns(self._table, updated, page, column_value_and_row_id_channels)
        self._changes.update(dict(zip(updated, values, strict=True)), ids, updated)

    def finish(self) -> Sequence[Fragment]:
        """See `UpdatablePageSource`."""
        return self._changes.finish()

    def abort(self) -> None:
        """See `UpdatablePageSource`."""
        self._changes.abort()

    def close(self) -> None:
        """See `ConnectorPageSource`."""
        self._pages = None
        self._changes.close()


# -- conditions on given values --------------------------------------------------------------------


_LISTED_MAX = 1 << 20
"""For more values, their range is used, because a list of them consists of Python objects."""


def _among(values: Mapping[str, pa.Array], view: TableView) -> Predicate | None:
    """A condition that is true for rows that have one of the values in each column.

    The columns are integers or strings. It can be true for other rows too.
    """
    types = {field.name: field.type.to_arrow() for field in view.schema.select(tuple(values))}
    terms: list[Predicate] = []
    for name, some in values.items():
        wanted = pl.Series(pa.array([], types[name])).dtype
        known: pl.Series = pl.Series(some).cast(wanted, strict=False).drop_nulls()
        if len(known) <= _LISTED_MAX:
            terms.append(In(name, tuple(known.to_list())))
        else:
            low, high = known.min(), known.max()  # without a sorted copy of all values
            terms += [Comparison(name, ">=", low), Comparison(name, "<=", high)]
    return conjunction(terms)


def narrowed(
    predicate: Predicate | None, values: Mapping[str, pa.Array], view: TableView
) -> Predicate | None:
    """A predicate that is also restricted to rows with one of the values in each column.

    The columns are integers or strings. It can be true for other rows too.
    """
    return conjunction([*conjuncts(predicate), *conjuncts(_among(values, view))])


def among_keys(keys: pl.DataFrame, view: TableView) -> Predicate | None:
    """A condition that is true for rows with one of the keys, column by column."""
    fields = view.schema.select(tuple(keys.columns))
    listed = {
        f.name: keys[f.name].unique().to_arrow()
        for f in fields
        if has_one_spelling(f.type) and not keys[f.name].null_count()
    }
    return conjunction(filter(None, (key_range(keys), _among(listed, view))))


# -- metadata on the driver ------------------------------------------------------------------------


H = TypeVar("H", bound=StoredHandle)


class WholeRowsMetadata(ConnectorMetadata):
    """Metadata operations for tables of which a statement changes whole rows."""

    def get_row_change_paradigm(self, session: ConnectorSession, table: Any) -> RowChangeParadigm:
        """See `ConnectorMetadata`. An update is one whole row."""
        return RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS

    def apply_values(
        self, session: ConnectorSession, table: Any, values: Mapping[str, pa.Array]
    ) -> Any:
        """See `ConnectorMetadata`."""
        return replace(table, predicate=narrowed(table.predicate, values, table.view))


@dataclass(frozen=True)
class StoredMetadata(WholeRowsMetadata, Generic[H]):
    """Metadata operations for tables of a catalog, including the end of a statement."""

    catalog: Catalog
    is_changed_by_key: ClassVar[bool]

    @abstractmethod
    def handle_of(self, table: PinnedTable) -> H:
        """The handle of a table, in a known state or after a compaction.

        Raises `UnsupportedError` for a table that cannot be written to.
        """

    @abstractmethod
    def commit(self, session: ConnectorSession, table: H, contents: Sequence[Told]) -> None:
        """Commit the results of sources and sinks once, or not at all if nothing changed."""

    # -- tables

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """See `ConnectorMetadata`."""
        names = self.catalog.tables()
        kinds = {n: kind_of(self.catalog.table(n).schema) for n in names}
        return [n for n in names if kinds[n].is_changed_by_key is self.is_changed_by_key]

    def get_table_handle(self, session: ConnectorSession, name: str) -> H | None:
        """See `ConnectorMetadata`.

        Raises `UnsupportedError` for a table that cannot be written to.
        """
        catalog = self.catalog.pinned()
        found = catalog.find(name)
        if found is None:
            return None
        handle = self.handle_of(catalog.table(found).pinned())
        if catalog.pins is not None:
            catalog.pins.renew(handle.table)  # the rest of the statement must read this newer state
        return handle

    def get_table_schema(self, session: ConnectorSession, table: H) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.view.schema
        made = table.view.options.generation_texts
        defaults = {f.name: write_default(f) for f in schema.fields if f.default_value is not None}
        columns = tuple(
            ColumnHandle(
                f.name,
                f.type,
                # A generated column needs no value in an INSERT, because the table computes it.
                f.nullable or f.name in made,
                defaults.get(f.name),
                is_generated=f.name in made,
            )
            for f in schema.arrow_schema()
        )
        return ConnectorTableSchema(table.table.name, columns, tuple(schema.primary_keys))

    def apply_filter(
        self, session: ConnectorSession, table: H, terms: Sequence[Predicate]
    ) -> tuple[H, Sequence[Predicate]]:
        """See `ConnectorMetadata`. No term remains."""
        predicate = conjunction([*conjuncts(table.predicate), *terms])
        return replace(table, predicate=predicate), ()

    # -- changes

    def check_changes(self, session: ConnectorSession, table: H, changes: RowChanges) -> None:
        """See `ConnectorMetadata`."""
        name = table.view.options.rowkind_field
        if name in changes.sets:
            raise InvalidError(
                f"{table}: an UPDATE cannot set {name!r}: '{keys.ROWKIND_FIELD}' makes it the "
                "row kind; use DELETE to delete rows"
            )
        made = changes.sets & table.view.options.generation_texts.keys()
        if made and session.operation == "UPDATE":
            raise InvalidError(
                f"{table}: an UPDATE cannot set {min(made)!r}, which is generated from other "
                "columns; set those"
            )
        marker = table.view.options.out_of_order_column
        if marker in changes.sets:
            raise InvalidError(
                f"{table}: an UPDATE cannot set {marker!r}, in which each write records late "
                f"rows ('{keys.UPSERT_OUT_OF_ORDER_COLUMN}'); remove it from the statement"
            )

    def begin_delete(self, session: ConnectorSession, table: H) -> H:
        """See `ConnectorMetadata`."""
        return self.begin_update(session, table, ())

    def finish_delete(
        self, session: ConnectorSession, table: H, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. Raises as `commit`."""
        contents = read_fragments(fragments)
        self.commit(session, table, contents)
        return sum(int(each.facts["rows"]) for each in contents)

    def abort_delete(
        self, session: ConnectorSession, table: H, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        if table.commit_progress is not None and table.commit_progress.has_begun:
            return  # the commit has cleaned up, unless a snapshot may refer to the files
        discard(table.view, _files_of(read_fragments(fragments)))
        remove_strays(table.view)

    def begin_update(
        self, session: ConnectorSession, table: H, updated_columns: Sequence[str]
    ) -> H:
        """See `ConnectorMetadata`."""
        return table.begin_change(updated_columns)

    finish_update, abort_update = finish_delete, abort_delete
    finish_merge, abort_merge = finish_delete, abort_delete


def begin_commit(
    transaction: Transaction,
    session: ConnectorSession,
    table: StoredHandle,
    contents: Sequence[Told],
) -> None:
    """Give the transaction the operation of a statement, and the files that fragments name."""
    transaction.set_operation(None if session.operation is None else Operation(session.operation))
    for written in _files_of(contents):
        transaction.collect(written)
    if table.commit_progress is not None:
        table.commit_progress.has_begun = True


def _files_of(contents: Sequence[Told]) -> Iterator[TaskResult]:
    for each in contents:
        if "written" in each.rows.column_names:
            for value in each.rows.column("written"):
                made = pickle.loads(value.as_py())
                if not isinstance(made, TaskResult):
                    raise ConnectorError(
                        f"a fragment contains no files, but a {type(made).__name__}"
                    )
                yield made
