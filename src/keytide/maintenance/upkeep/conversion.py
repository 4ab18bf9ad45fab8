"""Conversion: turns a table that merges on read into one with a key index, or back.

The row by which each key is judged (a row or a delete) is rewritten, and replaces everything that
is stored, in one commit. Two files record this: first the schema of the new kind, then the snapshot
that names it. Until the snapshot exists, the table is unchanged, see `SchemasInForce`. If any other
commit comes first, the work is done again on top of it. A conversion that is interrupted between
the two leaves a schema. The next conversion finishes it, or takes it back with one more schema of
the table's present kind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keytide.base.arguments import shown
from keytide.base.plural import counted
from keytide.base.record import Record
from keytide.commit.publish import Committed
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import local_runner
from keytide.definition.conversion import Definition, as_kind_of, converted
from keytide.errors import ConflictError, InvalidError, KeytideError, UnsupportedError
from keytide.format import paths
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.maintenance.upkeep.manifests import commit_alike
from keytide.maintenance.upkeep.moved_keys import MoveKeysTask, move_keys_tasks
from keytide.maintenance.upkeep.winners import MoveWinnersTask, move_winners_tasks
from keytide.maintenance.upkeep.writing import followed, show_rows
from keytide.merge.functions.register import registered_functions
from keytide.options import TableOptions, keys
from keytide.snapshot.in_force import SchemasInForce
from keytide.snapshot.schemas import Schemas
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import PinnedTable, StoredTable
from keytide.snapshot.view import TableView
from keytide.store import created
from keytide.write.partition_spec import every_partition
from keytide.write.stored_rows import task_of_stored
from keytide.write.trial import try_definition
from keytide.write.writable import writable_view

__all__ = ["ConversionResult", "convert"]

_MODES = (NO_UPSERTS, "full")


@dataclass(frozen=True)
class ConversionResult(Record):
    """What a conversion did or, in a dry run, what it would do.

    - `upsert_mode` is the table's new mode.
    - `files_before` files became `files_after` files, which is None in a dry run.
    - `dropped` lists the options that no longer apply and were removed.
    - `snapshot_id` is None when nothing was committed.
    """

    snapshot_id: int | None
    upsert_mode: str
    files_before: int
    files_after: int | None
    dropped: tuple[str, ...]


def convert(table: StoredTable, upsert_mode: str, *, dry_run: bool = False) -> ConversionResult:
    """Convert a table that merges on read to one with a key index, or back, in one atomic commit.

    With `upsert_mode` 'full', a table with the merge engine 'deduplicate' gets a key index. With
    'none' it merges again, see 'upsert.mode'. The rows are the same before and after, and late rows
    find the same: deletes stay deleted. Every row is rewritten into the bucket that the options
    determine. Older snapshots and tags are read as they were written. Options with the same meaning
    stay. Those without a meaning are dropped, and named in the result.

    Threads of this process do the work. Each uses its part of 'read.memory' and about four times
    'write-buffer-size'. Other processes can read and write at the same time. If a commit comes
    first, the work is done again on top of it, up to 'commit.max-retries' times. Writers that began
    before the conversion and commit later get a `ConflictError`. After an interruption, the table
    is in the old or in the new state. Until the same call has finished, or the present mode was
    requested, which takes the conversion back, the table cannot be altered. `dry_run` reports what
    would be done.

    Raises `InvalidError` for another mode. Raises `UnsupportedError`, before anything is written,
    for a table without an equivalent of the other kind, with the reason. Raises `ConflictError` if
    too many races were lost, and `DataError` if the store fails.
    """
    BEHIND.settle(table.uri)
    wanted, seen = _mode(table, upsert_mode), table.pinned()
    tries = writable_view(seen).options.commit_retries_max + 1
    for _ in range(tries):
        found = seen.metadata.schemas_in_force()
        _refuse_others(seen, found.schema, wanted)
        if found.schema.upsert_mode == wanted:
            done = _taken_back(seen.live, found, dry_run=dry_run)
        else:
            done = _carried_out(seen, found, wanted, dry_run=dry_run)
        if done is not None:
            return done
        seen = seen.live.pinned()
    raise ConflictError(
        f"table {table.name}: the conversion failed after {counted(tries, 'attempt')}, because "
        "other writers committed first; try again when there are fewer writers, or increase "
        f"'{keys.COMMIT_MAX_RETRIES}'. Until then the table cannot be altered, unless you "
        f"convert it back to its current '{keys.UPSERT_MODE}'"
    )


def _mode(table: StoredTable, upsert_mode: str) -> str:
    if upsert_mode.lower() not in _MODES:
        expected = " or ".join(map(repr, _MODES))
        raise InvalidError(
            f"table {table.name}: upsert_mode is {shown(upsert_mode)}; expected {expected}"
        )
    return upsert_mode.lower()


def _refuse_others(table: StoredTable, schema: TableSchema, wanted: str) -> None:
    """Raise `UnsupportedError` for a table that is neither kind."""
    if not schema.primary_keys:
        raise UnsupportedError(
            f"table {table.name} cannot be converted, because it has no primary key; write its "
            "rows to a new table with a primary key"
        )
    if schema.is_indexed and wanted not in (NO_UPSERTS, schema.upsert_mode):
        raise UnsupportedError(
            f"table {table.name} cannot be converted from '{keys.UPSERT_MODE}' = "
            f"'{schema.upsert_mode}' to '{wanted}'; write its rows to a new table"
        )


# -- taking a conversion back ----------------------------------------------------------------------


def _taken_back(
    table: StoredTable, found: SchemasInForce, *, dry_run: bool
) -> ConversionResult | None:
    """The result if the table already has the mode. None if another change came first.

    The commit decides: a conversion that is still running notices it, and starts again.
    """
    result = ConversionResult(None, found.schema.upsert_mode, 0, None if dry_run else 0, ())
    if dry_run or found.is_settled:
        return result
    if found.newest.upsert_mode != found.schema.upsert_mode:
        again = _numbered(found.schema, found.newest)
        if not created(table.store, paths.schema_path(again.id), again.to_json()):
            return None
    snapshot = commit_alike(table, "the conversion is undone")
    return replace(result, snapshot_id=snapshot.id)


def _numbered(schema: TableSchema, newest: TableSchema) -> TableSchema:
    """A schema with the number after the latest. Ids of columns are never reused."""
    highest, now_ms = newest.highest_field_id, time.time_ns() // 1_000_000
    return replace(schema, id=newest.id + 1, highest_field_id=highest, time_millis=now_ms)


# -- converting ------------------------------------------------------------------------------------


def _carried_out(
    pinned: PinnedTable, found: SchemasInForce, wanted: str, *, dry_run: bool
) -> ConversionResult | None:
    """The result if the table has another mode. None if another change came first."""
    target = _target(pinned, found, wanted)
    if not dry_run and show_rows(pinned) is not pinned:
        return None  # rows were hidden, and are no longer
    state = pinned.state_to_write(_view_before(pinned, target.schema))
    result = ConversionResult(None, wanted, len(state.live.files), None, target.dropped)
    if dry_run:
        return result
    is_stored = target.schema.id == found.newest.id
    view = _view_at(state.view, target.schema)
    begun = Transaction.on(pinned.live, TableState(view, state.live))
    with followed(pinned.live, begun, done="the table is converted") as transaction:
        local_runner().each(_tasks(state, transaction.state), transaction.take)
        if not is_stored and not _is_created(pinned, target.schema):
            transaction.abort()
            return None
        outcome = transaction.convert()
    if not isinstance(outcome, Committed):
        return None
    files = len(outcome.live.files)
    return replace(result, snapshot_id=outcome.snapshot.id, files_after=files)


def _target(table: StoredTable, found: SchemasInForce, wanted: str) -> Definition:
    """The definition that the table gets: one left by an earlier conversion, or a new one."""
    if found.newest.upsert_mode == wanted:
        return Definition.of(found.schema, found.newest)
    try:
        made = converted(_numbered(found.schema, found.newest), wanted)
        try_definition(table.metadata, made.schema)
    except KeytideError as error:
        raise type(error)(f"table {table.name} cannot be converted: {error}") from error
    return made


def _is_created(table: StoredTable, schema: TableSchema) -> bool:
    """Whether the stored schema is this one, and not one of another change."""
    return created(table.store, paths.schema_path(schema.id), schema.to_json())


def _view_before(table: StoredTable, target: TableSchema) -> TableView:
    """The table as it is, with its future columns.

    They differ if the table was rolled back to before a conversion, after which columns were
    altered.
    """
    view = writable_view(table)
    if target.fields == view.schema.fields:
        return view
    return table.view(as_kind_of(target, view.schema))


def _view_at(view: TableView, schema: TableSchema) -> TableView:
    """The table at a schema that may not be stored yet."""
    options = TableOptions.parse(schema.options)
    schemas = Schemas(view.name, {**view.schemas, schema.id: schema})
    functions = registered_functions(options)
    return replace(view, schema=schema, schemas=schemas, options=options, functions=functions)


def _tasks(state: TableState, target: TableState) -> Sequence[MoveKeysTask | MoveWinnersTask]:
    anew = task_of_stored(target)
    if state.view.kind.has_key_index:
        return move_keys_tasks(state, anew, every_partition)
    return move_winners_tasks(state, anew)
