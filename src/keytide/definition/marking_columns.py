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
        raise InvalidError(f"{role} does not exist; columns: {', '.join(schema.names)}")
    type_ = schema.field(name).type
    if type_.root not in _MARKS:
        raise InvalidError(f"{role} is {type_.sql()}; expected a BOOLEAN, string or number column")
    if name in schema.primary_keys:
        raise InvalidError(
            f"{role} is in the primary key, so a delete would not find the row that it deletes; "
            "use another column"
        )
    if options.tombstone_key:
        raise InvalidError(
            f"{role} and '{keys.TOMBSTONE_KEY}' both mark deletes; remove one of them"
        )


def check_marking_columns(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a column that cannot mark deletes or late rows."""
    if options.delete_record_column is not None:
        _check_delete_record(schema, options.delete_record_column, options)
    if options.out_of_order_column is not None:
        _check_out_of_order(schema, options.out_of_order_column, options)
    if options.leaves_out_late_rows and not options.sequence_field:
        option = keys.UPSERT_LATE_ROWS
        if options.drops_out_of_order:
            option = keys.UPSERT_DROP_OUT_OF_ORDER
        elif options.out_of_order_column is not None:
            option = keys.UPSERT_OUT_OF_ORDER_COLUMN
        raise InvalidError(
            f"'{option}' is about late rows, but without '{keys.SEQUENCE_FIELD}' no row is late; "
            "set the sequence field, or remove the option"
        )
    if options.late_rows == "leave-out" and not options.merges_rows:
        raise InvalidError(
            f"'{keys.UPSERT_LATE_ROWS}' = 'leave-out' requires '{keys.UPSERT_MODE}' = 'partial', "
            f"found '{options.upsert_mode}', where late rows are never returned; remove the option"
        )


def _check_out_of_order(schema: TableSchema, name: str, options: TableOptions) -> None:
    role = f"'{keys.UPSERT_OUT_OF_ORDER_COLUMN}' = {name!r}"
    if options.drops_out_of_order:
        raise InvalidError(
            f"{role} marks rows that '{keys.UPSERT_DROP_OUT_OF_ORDER}' = 'true' drops; remove "
            "one of them"
        )
    if name not in schema.by_name:
        raise InvalidError(f"{role} does not exist; columns: {', '.join(schema.names)}")
    if schema.field(name).type.root != "BOOLEAN":
        type_ = schema.field(name).type.sql()
        raise InvalidError(f"{role} is {type_}; expected a BOOLEAN column")
    taken = (*schema.primary_keys, *options.sequence_field, options.delete_record_column)
    if name in taken:
        raise InvalidError(
            f"{role} is already used to identify, compare or delete rows; use a separate column"
        )
