"""CHECK constraints added to tables that have rows, and taken away."""

from __future__ import annotations

from keytide.errors import AlreadyExistsError, InvalidError, NotFoundError
from keytide.options import TableOptions, keys
from keytide.table.alter import alter_table
from keytide.table.conditions.predicate import negation
from keytide.table.conditions.where import parse_where
from keytide.table.definition.evolution import RemoveOption, SetOption
from keytide.table.scans import scan_table
from keytide.table.state.stored import StoredTable
from keytide.table.write.constraints import constraint_texts

__all__ = ["add_constraint", "drop_constraint"]


def add_constraint(table: StoredTable, name: str, condition: str) -> None:
    """See `Table.add_constraint`."""
    key = keys.key_of(keys.CONSTRAINT, name)
    if name in _known(table):
        raise AlreadyExistsError(
            f"table {table.name} has a constraint {name!r}; drop it first, or choose another name"
        )
    where = parse_where(condition, table.schema.fields, f"{table.name}: constraint {name!r}")
    failing = scan_table(table, where=negation(where))
    count, first = 0, None
    for batch in failing.to_batches():
        if batch.num_rows and first is None:
            first = batch.slice(0, 1).to_pylist()[0]
        count += batch.num_rows
    if first is not None:
        key_of_first = {c: first[c] for c in table.schema.primary_keys or table.schema.names}
        shown = ", ".join(f"{column} = {value!r}" for column, value in key_of_first.items())
        raise InvalidError(
            f"table {table.name}: {count} rows break the constraint {name!r}, CHECK ({condition}), "
            f"the first with {shown}; update or delete them, and add it then"
        )
    alter_table(table.metadata, [SetOption(key, condition)])


def drop_constraint(table: StoredTable, name: str, *, missing_ok: bool = False) -> None:
    """See `Table.drop_constraint`."""
    known = _known(table)
    if name in known:
        alter_table(table.metadata, [RemoveOption(keys.key_of(keys.CONSTRAINT, name))])
    elif not missing_ok:
        there = ", ".join(known) or "none"
        raise NotFoundError(f"table {table.name} has no constraint {name!r}; it has: {there}")


def _known(table: StoredTable) -> dict[str, str]:
    return constraint_texts(TableOptions.parse(table.schema.options))
