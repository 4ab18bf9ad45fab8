"""Checks columns that mark rows as deletes or as late, in tables with a key index."""

from __future__ import annotations

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys

__all__ = ["check_marking_columns"]

_MARKS = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR",
     "VARCHAR")
)  # fmt: skip


def _check_delete_record(schema: TableSchema, name: str, options: TableOptions) -> None:
    role = f"'{keys.UPSERT_DELETE_RECORD_COLUMN}' = {name!r}"
    if name not in schema.by_name:
        raise InvalidError(f"{role} is not in {', '.join(schema.names)}; name one of them")
    type_ = schema.field(name).type
    if type_.root not in _MARKS:
        raise InvalidError(
            f"{role} is {type_.sql()}; expected BOOLEAN, a text or a number: name such a column"
        )
    if name in schema.primary_keys:
        raise InvalidError(
            f"{role} is in the primary key, so no delete would meet the row that it deletes; name "
            f"another column"
        )
    if options.tombstone_key:
        raise InvalidError(
            f"{role} and '{keys.TOMBSTONE_KEY}' both mark rows as deletes; leave one of them out"
        )


def check_marking_columns(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a column that cannot mark deletes or late rows."""
    if options.delete_record_column is not None:
        _check_delete_record(schema, options.delete_record_column, options)
    if options.out_of_order_column is not None:
        _check_out_of_order(schema, options.out_of_order_column, options)
    if options.leaves_out_late_rows and not options.sequence_field:
        option = keys.UPSERT_DROP_OUT_OF_ORDER
        if options.out_of_order_column is not None:
            option = keys.UPSERT_OUT_OF_ORDER_COLUMN
        raise InvalidError(
            f"'{option}' says what becomes of rows that come late, and without "
            f"'{keys.SEQUENCE_FIELD}' none does; name what rows are compared by, or leave it out"
        )


def _check_out_of_order(schema: TableSchema, name: str, options: TableOptions) -> None:
    role = f"'{keys.UPSERT_OUT_OF_ORDER_COLUMN}' = {name!r}"
    if options.drops_out_of_order:
        raise InvalidError(
            f"{role} marks rows that '{keys.UPSERT_DROP_OUT_OF_ORDER}' = 'true' drops; leave one "
            f"of them out"
        )
    if name not in schema.by_name:
        raise InvalidError(f"{role} is not in {', '.join(schema.names)}; name one of them")
    if schema.field(name).type.root != "BOOLEAN":
        type_ = schema.field(name).type.sql()
        raise InvalidError(f"{role} is {type_}; expected BOOLEAN: name such a column")
    taken = (*schema.primary_keys, *options.sequence_field, options.delete_record_column)
    if name in taken:
        raise InvalidError(
            f"{role} says something else of a row already, by which it is found, compared or "
            f"deleted; name a column of its own"
        )
