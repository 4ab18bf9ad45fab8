"""Refusals of writes: tables, rows that cannot be merged, and rows that violate a constraint.

Rows that a table's engine cannot merge are refused when they enter. So everything that is stored
can be read: a scan never finds a retraction that cannot be applied, or bytes that are not a valid
bitmap.

As in SQL, a row fails if a condition is false, and passes if the condition is NULL. Each row is
checked as it is written. In a partial row, whose other columns are NULL, only the given values are
checked. Rows that delete are not checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.row_kind import RowKind
from keytide.definition.kind import why_in_both_partitions
from keytide.errors import InvalidError, UnsupportedError
from keytide.gate import gate_of
from keytide.merge.order import VALUE_KIND
from keytide.merge.refusal import Refusal, named_rows, reasons, retracts_of
from keytide.options import keys
from keytide.predicate.condition import constraints_of
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.write.arrivals import as_deletes, row_merger
from keytide.write.input_rows import Rows, forbidden_nulls, ignored_kinds

# -- CHECK constraints -----------------------------------------------------------------------------


def broken_constraints(rows: pl.DataFrame, view: TableView) -> Iterator[Refusal]:
    """Which rows fail which constraint. `rows` have the table's columns and `_VALUE_KIND`."""
    kept = retracts_of(rows)
    for name, constraint in constraints_of(view.schema.fields, view.options, view.name).items():
        reason = f"the row violates the constraint {name!r}, CHECK ({constraint.text})"
        fails = constraint.fails(rows) & ~kept
        yield Refusal(fails, reason, f"constraint-{name}", constraint.columns)


# -- rows that cannot be merged --------------------------------------------------------------------


def refuse_unmergeable(
    rows: pl.DataFrame, view: TableView, known: Sequence[Refusal] = (), *, states_rows: bool = False
) -> None:
    """Raise `InvalidError`, with the reason, for the first row that the engine cannot merge.

    `rows` have the table's columns and `_VALUE_KIND`. Those that the table ignores are skipped.
    `known` are refusals found before. With `states_rows`, the rows are those of a statement, which
    read existing rows.
    """
    refusals = _refusals(rows, view, known, states_rows=states_rows)
    if not refusals:
        return
    why = reasons(refusals, rows.height)
    first = int(np.argmax(why.is_not_null().to_numpy()))
    key = view.schema.primary_keys
    named = named_rows(rows.slice(first, 1), key or view.schema.names)
    done = "merged" if view.kind.keeps_versions else "stored"
    refusal = next(r for r in refusals if r.reason == why[first] and r.rows[first])
    others = ""
    if refusal.columns:
        # The number of rows that are refused for it, and the values that are the reason in some.
        alike = rows.filter(pl.Series(refusal.rows))
        do = "row does" if alike.height == 1 else "rows do"
        columns = tuple(dict.fromkeys((*key, *refusal.columns)))
        others = f"; {alike.height:,} {do}: {named_rows(alike, columns)}"
    raise InvalidError(
        f"table {view.name}: {rows.height - why.null_count()} of {rows.height} rows cannot be "
        f"{done}, the first with {named}: {refusal.reason}{others}"
    )


def why_refused(rows: pl.DataFrame, view: TableView, known: Sequence[Refusal] = ()) -> pl.Series:
    """Why the engine cannot merge each row. NULL if it can, or if the table ignores the row.

    `rows` have the table's columns and `_VALUE_KIND`. `known` are refusals found before.
    """
    why = reasons(_refusals(rows, view, known), rows.height)
    return why.set(rows[VALUE_KIND].is_in(ignored_kinds(view.options)), None)


def without_errors(rows: Rows, view: TableView) -> tuple[Rows, dict[str, int]]:
    """The rows that the table accepts, and the number of the others by kind of error.

    A row is counted once, for the first error found. Rows that the table ignores are not checked.
    """
    frame, schema, refusals = rows.frame, view.schema, list[Refusal]()
    others = [f for f in schema.fields if f.name not in schema.primary_keys]
    for name, fields in (
        ("null-primary-key", schema.select(schema.primary_keys)),
        ("null-in-not-null-column", others),
    ):
        marks = np.asarray(forbidden_nulls(rows, fields, schema))
        if marks.any():
            refusals.append(Refusal(marks, name, name))
    refusals += _refusals(frame, view, rows.refusals)
    if not refusals:
        return rows, {}
    names = [replace(refusal, reason=refusal.name) for refusal in refusals]
    why = reasons(names, frame.height)
    why = why.set(frame[VALUE_KIND].is_in(ignored_kinds(view.options)), None)
    counted = why.drop_nulls().value_counts(sort=True)
    return rows.filter(pa.chunked_array([why.is_null().to_arrow()])), dict(counted.iter_rows())


def _refusals(
    rows: pl.DataFrame, view: TableView, known: Sequence[Refusal], *, states_rows: bool = False
) -> list[Refusal]:
    found: Iterable[Refusal]
    if not view.kind.takes_deletes:
        found = [
            Refusal(np.asarray(rows[VALUE_KIND] == kind), f"{kind.short} changes a row, but "
                    "without a primary key no row can be identified; an append table accepts "
                    "only +I")
            for kind in RowKind if kind is not RowKind.INSERT
        ]  # fmt: skip
    elif view.options.merges_rows:
        found = row_merger(view).refusals(as_deletes(rows))
    else:
        found = view.engine.refusals(rows)
    if view.kind.has_key_index and view.comparison.has_producers:
        found = itertools.chain(found, _of_no_producer(rows, view, states_rows=states_rows))
    if view.options.constraint_texts:
        found = itertools.chain(found, broken_constraints(rows, view))
    return [refusal for refusal in (*known, *found) if refusal.rows.any()]


def _of_no_producer(rows: pl.DataFrame, view: TableView, *, states_rows: bool) -> Iterator[Refusal]:
    """Rows without a comparison value, or with several, which only rows that were read may have."""
    names = view.comparison.names
    count = rows.select(pl.sum_horizontal(pl.col(names).is_not_null()).alias("n"))["n"].to_numpy()
    columns = ", ".join(map(repr, names))
    yield Refusal(
        count == 0,
        f"all of {columns} are NULL, but the row must be compared by one of them",
        "no-comparison-value",
    )
    was_read = np.asarray(rows[VALUE_KIND] != RowKind.INSERT) & states_rows
    yield Refusal(
        (count > 1) & ~was_read,
        f"several of {columns} have a value, but a row is compared by the column of its producer "
        "only; set the others to NULL",
        "several-comparison-values",
    )


# -- tables that this release can write to ---------------------------------------------------------


def writable_view(table: StoredTable) -> TableView:
    """The view of a table's latest schema, for writing.

    Raises `UnsupportedError`, with the reason, for a table that this release must not append to: a
    write would make keys no longer unique, or would lose changes for a reader.
    """
    view = table.view(table.schema)
    check_writable(view)
    return view


def check_writable(view: TableView) -> None:
    """Raise `UnsupportedError` like `writable_view`."""
    reason = (
        view.files.why_not_writable
        or gate_of(view.schema, view.options).why_not_writable
        or view.kind.why_not_writable(view.options)
        or _why_keys_would_move(view)
    )
    if reason is None and view.options.deletion_vectors_enabled and view.kind.keeps_versions:
        # Rows would stay where readers of deletion vectors do not look.
        kept = view.engine.why_kept_apart
        if kept is not None:
            hides = f"'{keys.DELETION_VECTORS_ENABLED}' hides rows until a compaction"
            reason = f"{hides}, and here they merge nothing: {kept}"
    if reason is not None:
        raise UnsupportedError(f"table {view.name}: this release cannot write to it: {reason}")


def _why_keys_would_move(view: TableView) -> str | None:
    if view.moves_keys and set(view.schema.partition_keys) & set(view.schema.primary_keys):
        return "its primary key has some of its partition columns and lacks others"
    if view.moves_keys and view.options.changelog_producer == "input":
        return (
            f"'{keys.CHANGELOG_PRODUCER}' = 'input' keeps rows as they came, and keys that move "
            f"between partitions are written otherwise; set it to 'lookup' or 'full-compaction'"
        )
    return why_in_both_partitions(view.schema, view.options)
