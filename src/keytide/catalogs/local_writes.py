"""Local writes: the rows that this process has in memory, into new and existing tables.

A write can extend the table for its rows. The new definition is a separate file, which is written
first. A process that dies between the two leaves a table with columns that are still NULL, or with
wider types than needed. The write can then be repeated.

A table that is created for rows is created together with them, or not at all.

Writes of several threads to one table share a commit. While one thread writes to a table, others
that come wait for it. Then one of them writes the rows of all that wait, as if they were one write:
in the order in which they came, so the outcome is that of writing them one after the other. Each
still gets a result or an error of its own. Threads whose writes have just ended probably write
again, so the next one gives them a moment to come. A thread that is alone waits for nobody.

Threads that would commit separately compete for the same snapshot. Each commit then costs the
others a repetition, so that eight threads write less per second than one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Condition, Event, get_ident
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.base.row_kind import ROW_KIND
from keytide.catalogs.schema_changes import alter_as_needed
from keytide.catalogs.warehouse import Warehouse
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.bulk_load import raise_replacement
from keytide.definition.schema_evolution import SchemaChange, growth
from keytide.errors import (
    AlreadyExistsError,
    DataError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format.arrow import from_arrow
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Operation
from keytide.maintenance.writes import with_follow_ups, writing
from keytide.options import TableOptions
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import (
    PinnedTable,
    StoredTable,
    as_expected,
    metadata_before_creation,
)
from keytide.tasks import Threads
from keytide.write.input_rows import complete_rows, padded, to_arrow_table, typed_rows, wider_table
from keytide.write.partition_spec import Place, fitting, partition_to_replace
from keytide.write.refusals import writable_view
from keytide.write.task import WriteTask

# -- writes of in-memory rows ----------------------------------------------------------------------


Fitting: TypeAlias = "Callable[[Transaction, pa.Table], pa.Table]"


def _unchanged(transaction: Transaction, rows: pa.Table) -> pa.Table:
    return rows


def append(
    table: StoredTable,
    data: Any,
    author: Author | None = None,
    fitting: Fitting = _unchanged,
) -> WriteResult:
    """Append rows in one atomic commit, see `Table.write`. Writes of several threads may share one.

    `fitting` returns the rows to write on top of the transaction's state. It is called each time
    that they are written.
    """
    # A reader can be read only once, and executing a plan again costs as much as the first time.
    held = pa.Table | pa.RecordBatch | pl.DataFrame | Sequence
    can_be_read_again = isinstance(data, held) or type(data).__module__.startswith("pandas.")
    if not can_be_read_again:
        return _append(table.pinned(), data, author, fitting)
    is_live = not isinstance(table, PinnedTable)
    if is_live and author is None and fitting is _unchanged:
        # Only with writes that have the same credentials, and commit at the same place.
        place = table.uri, table.store, type(table.metadata.commits)
        return GROUPS.write(place, data, partial(_append_each, table))
    return as_expected(table, partial(_append, data=data, author=author, fitting=fitting))


def _append_each(table: StoredTable, given: Sequence[Any]) -> Sequence[Outcome]:
    """The outcomes of several writes, in one commit if they can share one."""
    if len(given) > 1:
        # Refused before anything is written. Then each is written alone, so that the others are not
        # refused with it.
        with suppress(CannotShareError, InvalidError, NotFoundError, UnsupportedError):
            return as_expected(table, partial(_append_together, given=given))
    outcomes: list[Outcome] = []
    for data in given:
        try:
            alone = partial(_append, data=data, author=None, fitting=_unchanged)
            outcomes.append(as_expected(table, alone))
        except Exception as error:  # noqa: PERF203  # each has an outcome of its own
            outcomes.append(error)
    return outcomes


def _append_together(table: PinnedTable, given: Sequence[Any]) -> Sequence[WriteResult]:
    """Append the rows of several writes in one commit, with the result of each.

    Raises `CannotShareError`, with nothing written, if the result of each could not be computed.
    """
    view = writable_view(table)
    parts = [to_arrow_table(data, view.schema, table.name) for data in given]
    options, names = view.options, set(parts[0].column_names)
    # Then one row of a write counts, and is stored, for each of its keys.
    merges_to_one = not view.kind.has_key or (
        view.kind.keeps_versions
        and view.engine.picks_a_version
        and view.engine.why_kept_apart is None
    )
    has_kinds = ROW_KIND in names or options.rowkind_field is not None
    counts_more = options.counts_row_errors or options.tells_out_of_order
    is_alike = all(part.schema.equals(parts[0].schema) for part in parts)
    if not merges_to_one or has_kinds or counts_more or not is_alike:
        raise CannotShareError
    rows = pa.concat_tables(parts)
    with writing(table, view) as transaction:
        fill(transaction, rows)
        result = transaction.commit(lambda: fill(transaction, rows))
    key = list(view.schema.primary_keys)
    return [
        replace(
            result,
            rows=part.num_rows,
            rows_stored=from_arrow(part.select(key)).n_unique() if key else part.num_rows,
        )
        for part in parts
    ]


def _append(table: PinnedTable, data: Any, author: Author | None, fitting: Fitting) -> WriteResult:
    view = writable_view(table)
    given = to_arrow_table(data, view.schema, table.name)
    with writing(table, view, author) as transaction:
        if transaction.own_commit is not None:
            return transaction.previous_result(given.num_rows)

        fill(transaction, fitting(transaction, given))
        return transaction.commit(lambda: fill(transaction, fitting(transaction, given)))


def fill(transaction: Transaction, rows: pa.Table) -> None:
    """Write rows as the only part of a transaction. Raises the errors of `WriteTask.feed`."""
    feed(transaction, transaction.task(), rows)


def feed(transaction: Transaction, task: WriteTask, rows: pa.Table) -> None:
    """Write rows with a task of a transaction, as its part.

    Raises the errors of `WriteTask.feed`.
    """
    threads = os.cpu_count() or 1
    here = replace(transaction.task_here(task), threads=threads)
    Threads(threads).feed(here, rows, transaction.collect)


def overwrite(
    table: StoredTable, data: Any, partition: Mapping[str, Any] | None = None
) -> WriteResult:
    """Replace rows in one atomic commit, see `Table.overwrite`."""
    table = table.pinned()
    view = writable_view(table)
    spec = partition_to_replace(view, partition)
    given = to_arrow_table(data, view.schema, table.name)
    given = given if spec is None else spec.filled(given)
    with writing(table, view) as transaction:
        feed(transaction, transaction.task_anew(spec), given)
        raise_replacement(transaction)
        return transaction.overwrite(spec)


def truncate(table: StoredTable, partitions: Sequence[Place] = ()) -> WriteResult:
    """Delete all rows, or those of some partitions, in one atomic commit, see `Table.truncate`."""
    table = table.pinned()
    view = writable_view(table)
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    with writing(table, view) as transaction:
        transaction.set_operation(Operation.TRUNCATE)
        return transaction.replace(fits)


# -- extension of tables for new rows --------------------------------------------------------------


def extended_for(
    table: StoredTable,
    data: Any,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[PinnedTable, pa.Table]:
    """A table that accepts all columns of some rows, and the rows converted for it.

    `data` is the same as in `Table.write`, except for Spark DataFrames. `partition` is what the
    rows replace. Raises like `Table.write`, with nothing changed, for rows that the table could not
    accept even then.
    """
    pinned = table.pinned()
    spec = partition_to_replace(writable_view(pinned), partition)
    given = wider_table(data, pinned.schema, table.name)
    given = given if spec is None else spec.filled(given)

    def check(schema: TableSchema) -> None:
        options = TableOptions.parse(schema.options)
        rows = typed_rows(padded(given, schema, options), schema, options, table.name)
        if not options.counts_row_errors:
            complete_rows(rows, schema, options, table.name)

    pinned = extended_table(
        pinned, partial(growth, columns=given.schema, table=table.name), check, author
    )
    return pinned, padded(given, pinned.schema, TableOptions.parse(pinned.schema.options))


def extended_table(
    pinned: PinnedTable,
    needed: Callable[[TableSchema], Sequence[SchemaChange]],
    check: Callable[[TableSchema], None] = lambda _: None,
    author: Author | None = None,
) -> PinnedTable:
    """The table once its definition needs no more changes.

    `needed` returns the missing changes of a definition. `check` raises an error if something would
    not fit. It is called before a definition is stored. If the author has committed before, nothing
    is changed. Raises the errors of these functions and of `alter_table`.
    """
    writable_view(pinned)  # or nothing must be changed
    if not needed(pinned.schema):
        return pinned
    if author is not None:
        newest = pinned.metadata.latest_snapshot()
        if author.own(pinned.metadata, newest, CommitKind.APPEND) is not None:
            return pinned
    alter_as_needed(pinned.live.metadata, needed, check)
    return pinned.live.pinned()


# -- creation of a table with its first rows -------------------------------------------------------


def create_filled(
    warehouse: Warehouse,
    database: str,
    name: str,
    definition: TableSchema,
    fill: Callable[[Transaction], None],
) -> WriteResult:
    """Write the first rows of a table, and create the table with their commit.

    Data files are written first, under names that nobody reads. The table is created immediately
    before the snapshot. After an error, neither exists. A process that dies leaves data files
    without a table or, between the two steps, an empty table. If a warehouse assigns the location
    only when a table is created, the table is empty until the rows are written. Raises
    `AlreadyExistsError` if another process created the table in the meantime, and the errors of
    `fill`.
    """
    if not warehouse.places_first:
        with _creation(warehouse, database, name, definition) as metadata:
            table = StoredTable.of(metadata).pinned()
            begun = Transaction.begin(table, writable_view(table))
            with with_follow_ups(table, begun) as transaction:
                fill(transaction)
                return transaction.commit()
    metadata = warehouse.metadata(database, name)
    table = PinnedTable(StoredTable.of(metadata), metadata_before_creation(metadata, definition))
    with with_follow_ups(table, Transaction.begin(table, writable_view(table))) as transaction:
        # Data first: a visible table should never be without its first rows.
        fill(transaction)
        with _creation(warehouse, database, name, definition, metadata):
            return transaction.commit()


@contextmanager
def _creation(
    warehouse: Warehouse,
    database: str,
    name: str,
    definition: TableSchema,
    known: TableMetadata | None = None,
) -> Iterator[TableMetadata]:
    """Create a table. After an error in the block, drop it, unless somebody has committed to it."""
    if not warehouse.create(database, name, definition):
        raise AlreadyExistsError(
            f"table {database}.{name} was created by another writer meanwhile; insert the rows "
            "into it, or choose another name"
        )
    metadata = warehouse.metadata(database, name) if known is None else known
    try:
        yield metadata
    except BaseException:
        # A commit with unknown outcome keeps its files. Without a table, nobody can reference them.
        with suppress(DataError):
            if metadata.latest_snapshot_id() is None:
                warehouse.drop(database, name)
        raise


# -- group commits ---------------------------------------------------------------------------------


Outcome: TypeAlias = "WriteResult | Exception"
TablePlace: TypeAlias = "tuple[Hashable, ...]"

# A commit with more writes would make the first of them wait longer than they gain.
_TOGETHER_MAX = 64
# Threads that write in a loop are back earlier. It is a small part of a commit.
_MOMENT_S = 0.002


class CannotShareError(Exception):
    """These writes cannot share a commit. This error never leaves a write."""


@dataclass(eq=False)
class _Write:
    """A write that waits: its rows, and its outcome."""

    data: Any
    is_told: Event = field(default_factory=lambda: Event())
    """Set once the write has an outcome, or has to write for a group."""
    group: Sequence[_Write] = ()
    """The writes that this one's thread has to do, itself first. Empty for the others."""
    is_over: bool = False
    """Whether its thread has handed on what came later."""
    outcome: Outcome | None = None


class GroupCommits:
    """The writes of a process that wait for another one to the same table, by its place.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again without writes, because a fork does not copy threads."""
        self._lock = Condition()
        self._waiting: dict[TablePlace, list[_Write]] = {}
        """What waits, for each table to which a thread writes at the moment."""
        self._last: dict[TablePlace, tuple[float, int]] = {}
        """When the last group of a table ended, and how many writes were in it or waited for it, if
        they were several.
        """
        self._writers: dict[TablePlace, int] = {}
        """Which thread that is."""

    def write(
        self, place: TablePlace, data: Any, commit: Callable[[Sequence[Any]], Sequence[Outcome]]
    ) -> WriteResult:
        """The result of writing `data`, alone or with what others write to the table at `place`.

        The address of the table is the first member of its place.

        `commit` writes several data and returns the outcome of each. Raises its errors, and the
        error of this write. Raises `DataError` if another thread was stopped while it wrote `data`.
        """
        own, is_within = _Write(data), False
        with self._lock:
            if place not in self._waiting:
                self._waiting[place], own.group = [], [own]
            elif self._writers.get(place) == get_ident():
                is_within = True  # it must not wait for itself
            else:
                self._waiting[place].append(own)
                self._lock.notify_all()
        try:
            if is_within:
                (own.outcome,) = commit([data])
            elif not own.group:
                own.is_told.wait()
            if own.group:
                self._write_group(place, own, commit)
        except BaseException:  # Ctrl-C
            with self._lock:
                if own in self._waiting.get(place, ()):
                    self._waiting[place].remove(own)
                elif own.group and not own.is_over:  # another thread writes for the others
                    self._hand_on(place, [each for each in own.group if each is not own])
            raise
        if isinstance(own.outcome, WriteResult):
            return own.outcome
        raise own.outcome or DataError(
            f"{place[0]}: the thread that wrote these rows with its own was stopped, so it is "
            "unknown whether they are written; read the table before you write them again"
        )

    def _write_group(
        self,
        place: TablePlace,
        own: _Write,
        commit: Callable[[Sequence[Any]], Sequence[Outcome]],
    ) -> None:
        """Write `own` and those that wait, once the threads of the last group had time to come."""
        self._writers[place] = get_ident()
        try:
            with self._lock:
                ended, count = self._last.pop(place, (0.0, 0))
                moment_s = ended + _MOMENT_S - time.monotonic()
                if moment_s > 0:
                    self._lock.wait_for(lambda: len(self._waiting[place]) >= count - 1, moment_s)
                waiting = self._waiting[place]
                own.group = [own, *waiting[: _TOGETHER_MAX - 1]]
                self._waiting[place] = waiting[_TOGETHER_MAX - 1 :]
            outcomes = commit([write.data for write in own.group])
            for write, outcome in zip(own.group, outcomes, strict=True):
                write.outcome = outcome
        except Exception as error:
            for write in own.group:
                write.outcome = error
        finally:
            for write in own.group[1:]:
                write.is_told.set()
            with self._lock:
                own.is_over = True
                count = len(own.group) + len(self._waiting[place])
                if count > 1:
                    self._last[place] = time.monotonic(), count
                self._writers.pop(place, None)
                self._hand_on(place, [])

    def _hand_on(self, place: TablePlace, first: list[_Write]) -> None:
        """Let the next of the waiting writes begin. Those of `first` come before the others."""
        waiting = [*first, *self._waiting[place]]
        if not waiting:
            del self._waiting[place]
            return
        next_, *self._waiting[place] = waiting
        next_.group = [next_]
        next_.is_told.set()


GROUPS = GroupCommits()
os.register_at_fork(after_in_child=GROUPS.forget)
