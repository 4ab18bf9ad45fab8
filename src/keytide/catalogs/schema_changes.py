"""Schema changes of a table: ALTER, and CHECK constraints that are added or removed.

Like a snapshot, a schema is one file whose creation is the change. A writer that loses the race for
an id applies its changes to the schema that won.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass, replace
from keytide.base.text import counted
from keytide.definition.checks import check_uses, validate_definition
from keytide.definition.option_changes import refuse_losing_read
from keytide.definition.schema_evolution import RemoveOption, SchemaChange, SetOption, evolve
from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    KeytideError,
    NotFoundError,
)
from keytide.format import paths
from keytide.format.arrow import from_arrow
from keytide.format.schema import TableSchema
from keytide.merge.refusal import NAMED_ROWS_MAX, named_rows
from keytide.options import TableOptions, keys
from keytide.predicate.condition import constraint_of, expressions_in
from keytide.predicate.predicate import negation
from keytide.predicate.row_expression import RowExpression
from keytide.read.requests import scan_table
from keytide.snapshot.authority import Keeper, UnknownOutcomeError, refuse_lost
from keytide.snapshot.branch_tables import branch_names, has_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import created
from keytide.write.task import try_definition

# -- ALTER -----------------------------------------------------------------------------------------


def alter_table(
    metadata: TableMetadata,
    changes: Sequence[SchemaChange],
    *,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> TableSchema:
    """Make all changes in one new schema, and return it. Durable on return.

    Warns about options that only other engines use. Raises these errors, with nothing changed:

    - the errors of `evolve`
    - `InvalidError` if there are no changes
    - `UnsupportedError` for an option that would have no effect in any engine
    - `ConflictError` if another change came first and makes these impossible, if too many races
      were lost, or while a conversion is running or was interrupted
    - `DataError` if the store fails
    """
    if not changes:
        raise InvalidError(
            f"table {metadata.name}: alter was called without a change; give at least one"
        )
    first = _schema_to_alter(metadata)

    def made(base: TableSchema) -> _NextSchema:
        return _NextSchema(base, _evolved(metadata, base, changes, is_first=base is first), changes)

    return _altered(metadata, first, made, clock_ms)


def alter_as_needed(
    metadata: TableMetadata,
    needed: Callable[[TableSchema], Sequence[SchemaChange]],
    check: Callable[[TableSchema], None],
    *,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> TableSchema:
    """Make the changes that the latest definition needs, and return the result.

    `needed` is called again if another change came first, and may then need nothing. `check` is
    called with the schema before it is stored. Raises the errors of `alter_table`, and of these
    functions.
    """

    def made(base: TableSchema) -> _NextSchema:
        changes = needed(base)
        if not changes:
            return _NextSchema(base, base, changes)
        evolved = _evolved(metadata, base, changes, is_first=True)
        check(evolved)
        return _NextSchema(base, evolved, changes)

    return _altered(metadata, _schema_to_alter(metadata), made, clock_ms)


@dataclass(frozen=True)
class _NextSchema:
    """A schema to follow another one, and the changes that lead to it."""

    base: TableSchema
    schema: TableSchema
    changes: Sequence[SchemaChange]

    def stored(self, metadata: TableMetadata, keeper: Keeper | None) -> TableSchema | None:
        """The schema after it is stored durably. None if another one came first."""
        if keeper is not None:
            return self._altered_by_keeper(metadata, keeper)
        path = paths.schema_path(self.schema.id)
        if not created(metadata.store, path, self.schema.to_json()):
            return None
        refuse_lost(metadata.store, path, paths.schema_dir())
        metadata.commits.altered(metadata.store, self.schema)
        return self.schema

    def _altered_by_keeper(self, metadata: TableMetadata, keeper: Keeper) -> TableSchema:
        """The schema after a catalog has made the changes, based on its own latest schema."""
        try:
            keeper.alter(metadata.store, self.changes)
        except UnknownOutcomeError:
            own, newest = self.schema, metadata.newest_schema()
            if replace(newest, id=own.id, time_millis=own.time_millis) != own:
                raise
        # The catalog does not know which of Keytide's own options name a column, or follow from
        # others.

        # The option changes that the catalog did not make.
        found = metadata.newest_schema()
        before, after = self.base.options, self.schema.options
        touched = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        left = [
            SetOption(key, after[key]) if key in after else RemoveOption(key)
            for key in touched
            if found.options.get(key) != after.get(key)
        ]
        if left:
            keeper.alter(metadata.store, left)
        return metadata.newest_schema()


def _altered(
    metadata: TableMetadata,
    base: TableSchema,
    made: Callable[[TableSchema], _NextSchema],
    clock_ms: Callable[[], int],
) -> TableSchema:
    """Store the result of `made` for the latest schema, which is `base` at first, as the next
    schema.
    """
    tries = TableOptions.parse(base.options).commit_retries_max + 1
    keeper = metadata.commits.keeper
    for _ in range(tries):
        following = made(base)
        if following.schema == replace(base, id=following.schema.id):
            return base  # nothing has changed
        _try(metadata, base, following.schema)
        # If the bytes are equal, it does not matter who wrote them: the same change in the same
        # millisecond.
        following = replace(following, schema=replace(following.schema, time_millis=clock_ms()))
        there = following.stored(metadata, keeper)
        if there is not None:
            try:
                known = validate_definition(base, TableOptions.parse(base.options))
            except KeytideError:
                known = []  # the changes fixed it
            doubts = validate_definition(there, TableOptions.parse(there.options))
            for message in [
                *(doubt for doubt in doubts if doubt not in known),
                *_messages(base, there),
            ]:
                warn_caller(f"table {metadata.name}: {message}")
            return there
        base = _schema_to_alter(metadata)
    raise ConflictError(
        f"table {metadata.name}: altering failed after {counted(tries, 'attempt')}, because "
        f"other changes were committed first; try again, or increase '{keys.COMMIT_MAX_RETRIES}'"
    )


def _schema_to_alter(metadata: TableMetadata) -> TableSchema:
    """The latest schema.

    Raises `ConflictError` while the table is being converted to another kind.
    """
    found = metadata.schemas_in_force()
    if found.is_settled:
        return found.newest
    raise ConflictError(
        f"table {metadata.name} cannot be altered: a conversion created schema {found.newest.id} "
        f"and is still running or was interrupted, and the table still has '{keys.UPSERT_MODE}' "
        f"= '{found.schema.upsert_mode}'. {found.way_out}"
    )


def _evolved(
    metadata: TableMetadata, base: TableSchema, changes: Sequence[SchemaChange], *, is_first: bool
) -> TableSchema:
    latest = metadata.latest_snapshot()
    has_rows = latest is not None and latest.total_record_count != 0
    try:
        evolved = evolve(base, changes, has_rows=has_rows)
        refuse_losing_read(base, evolved, expressions_in(base))
        _messages(base, evolved)

        branch = TableOptions.parse(evolved.options).branch
        if branch != paths.MAIN_BRANCH and not has_branch(metadata.store, branch):
            there = ", ".join([paths.MAIN_BRANCH, *branch_names(metadata.store)])
            raise NotFoundError(
                f"option '{keys.BRANCH}' is {branch!r}, but this branch does not exist; existing "
                f"branches: {there}"
            )
        return evolved
    except KeytideError as error:
        if is_first:
            raise type(error)(f"table {metadata.name}: {error}") from error
        raise ConflictError(
            f"table {metadata.name}: the schema was changed by another writer first, and this "
            f"change is no longer possible: {error}; check the new schema and try again"
        ) from error


def _try(metadata: TableMetadata, base: TableSchema, evolved: TableSchema) -> None:
    """Raise the errors that writers would raise, for a table that they could write to before."""
    try:
        try_definition(metadata, evolved)
    except KeytideError:
        try:
            try_definition(metadata, base)
        except KeytideError:
            return
        raise


def _messages(old: TableSchema, new: TableSchema) -> list[str]:
    """Warnings about newly set options. Raises `UnsupportedError`."""
    return check_uses(
        {key: value for key, value in new.options.items() if old.options.get(key) != value}
    )


# -- CHECK constraints -----------------------------------------------------------------------------


def add_constraint(table: StoredTable, name: str, condition: str) -> None:
    """See `Table.add_constraint`."""
    key = keys.key_of(keys.CONSTRAINT, name)
    if name in TableOptions.parse(table.schema.options).constraint_texts:
        raise AlreadyExistsError(
            f"table {table.name} already has a constraint {name!r}; drop it first, or choose "
            "another name"
        )
    table = table.pinned()
    constraint = constraint_of(name, condition, table.schema.fields, table.name)
    columns = tuple(dict.fromkeys((*table.schema.primary_keys, *constraint.columns)))
    columns = columns or table.schema.names[:1]
    # Files whose metadata exclude failures are skipped.
    rule = constraint.condition
    scan = scan_table(table, columns, None if isinstance(rule, RowExpression) else negation(rule))
    count, first = 0, from_arrow(scan.schema.empty_table())
    for batch in scan.to_batches():
        rows = from_arrow(pa.Table.from_batches([batch]))
        failing = rows.filter(pl.Series(constraint.fails(rows)))
        count += failing.height
        first = pl.concat([first, failing]).head(NAMED_ROWS_MAX)
    if count:
        more = "; ..." if count > first.height else ""
        raise InvalidError(
            f"table {table.name}: {count} rows violate the constraint {name!r}, CHECK "
            f"({condition}), for example {named_rows(first, columns)}{more}; update or delete "
            "them, and then add the constraint"
        )
    alter_table(table.metadata, [SetOption(key, condition)])


def drop_constraint(table: StoredTable, name: str, *, missing_ok: bool = False) -> None:
    """See `Table.drop_constraint`."""
    known = TableOptions.parse(table.schema.options).constraint_texts
    if name in known:
        alter_table(table.metadata, [RemoveOption(keys.key_of(keys.CONSTRAINT, name))])
    elif not missing_ok:
        there = ", ".join(known) or "none"
        raise NotFoundError(
            f"table {table.name} has no constraint {name!r}; existing constraints: {there}"
        )
