"""Which tables can be published for readers of other formats, by their definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keytide.errors import InvalidError, UnsupportedError
from keytide.format.delta import columns as delta
from keytide.format.iceberg import columns as iceberg
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.table.definition.defaults import read_defaults
from keytide.types import Field

__all__ = ["DELTA", "ICEBERG", "check_publication"]

DELTA = "delta"
ICEBERG = "iceberg"

_WHY_NO_COLUMN: Mapping[str, Callable[[Field], str | None]] = {
    DELTA: delta.why_no_column,
    ICEBERG: iceberg.why_no_column,
}


def check_publication(schema: TableSchema, options: TableOptions) -> None:
    """Refuse to publish a table of which others would read something else than Keytide does.

    Raises `UnsupportedError` naming the column or option.
    """
    for form in options.publish:
        told = f"'{keys.PUBLISH}' = '{','.join(options.publish)}'"
        for field in schema.fields:
            reason = _WHY_NO_COLUMN[form](field)
            if reason is not None:
                raise UnsupportedError(
                    f"{told} cannot be set: column {field.name!r} is {field.type.sql()}, and "
                    f"{reason}; leave it out, or give the column another type"
                )
    if options.publish:
        _check_shown(schema, options, f"'{keys.PUBLISH}' = '{','.join(options.publish)}'")


def _check_shown(schema: TableSchema, options: TableOptions, told: str) -> None:
    """What Keytide shows otherwise than it is stored, and others would not."""
    defaults = read_defaults(schema, options)
    if defaults:
        raise UnsupportedError(
            f"{told} cannot be set: column {next(iter(defaults))!r} has a "
            f"'{keys.DEFAULT_VALUE}', which other readers do not show in the place of NULL; "
            f"leave one of them out"
        )
    if options.row_lifetime_ms is not None and schema.primary_keys:
        raise UnsupportedError(
            f"{told} cannot be set: '{keys.RECORD_LEVEL_EXPIRE_TIME}' hides rows with time, which "
            f"other readers would go on to show; leave one of them out"
        )
    if options.file_format != "parquet":
        raise InvalidError(
            f"{told} needs '{keys.FILE_FORMAT}' = 'parquet', found '{options.file_format}'; other "
            f"readers know no other files"
        )
