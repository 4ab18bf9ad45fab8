"""Default values: what replaces NULL.

`fields.<column>.default-value` replaces values that are still NULL after the merge, when rows are
read. Stored rows keep their NULL. A column's DEFAULT replaces NULL when rows are written, also in
deletes.
"""

from __future__ import annotations

import pyarrow as pa

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.values.single import scalar_of_text
from keytide.types import AtomicType, Field

__all__ = ["parse_default", "read_defaults", "write_default"]

_BYTES = ("BINARY", "VARBINARY")


def read_defaults(schema: TableSchema, options: TableOptions) -> dict[str, pa.Scalar]:
    """The values that readers see instead of NULL, by column.

    Raises `InvalidError` for a value that does not fit its column, and for columns that are never
    NULL or that order versions.
    """
    defaults = {}
    for names, text in options.by_columns(keys.DEFAULT_VALUE).items():
        for name in names.split(","):
            if name not in schema.names:
                continue  # the column was dropped, but not the option
            _refuse_ordering(name, schema, options)
            key = keys.key_of(keys.DEFAULT_VALUE, names)
            defaults[name] = parse_default(text, schema.field(name), f"option {key!r}")
    return defaults


def write_default(field: Field) -> pa.Scalar:
    """The value that a write stores instead of NULL: the column's DEFAULT, which must exist.

    Raises `InvalidError` if it is not a value of the column.
    """
    assert field.default_value is not None
    return parse_default(field.default_value, field, f"DEFAULT of column {field.name!r}")


def parse_default(text: str, field: Field, what: str) -> pa.Scalar:
    """Parse a default as a value of its column.

    Raises `InvalidError`, which names its origin `what`.
    """
    type_ = field.type
    if not isinstance(type_, AtomicType) or type_.root in _BYTES:
        raise InvalidError(
            f"{what} is {text!r}, and column {field.name!r} is {type_.sql()}; only strings, "
            "numbers, booleans and times can have a default"
        )
    try:
        return scalar_of_text(text, field, what)
    except InvalidError as error:
        raise InvalidError(
            f"{what} is {text!r}, which is not a value of {type_.sql()}, the type of column "
            f"{field.name!r}"
        ) from error


def _refuse_ordering(name: str, schema: TableSchema, options: TableOptions) -> None:
    roles = {
        "a primary key column": schema.primary_keys,
        "a partition column": schema.partition_keys,
        "a sequence field": options.sequence_field,
    }
    for role, names in roles.items():
        if name in names:
            raise InvalidError(
                f"'{keys.key_of(keys.DEFAULT_VALUE, name)}' is set, but {name!r} is {role}, "
                "which cannot have a default; remove the option"
            )
