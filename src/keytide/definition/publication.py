"""Which tables can be published in other formats, according to their definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keytide.definition.column_rules import read_defaults
from keytide.errors import UnsupportedError
from keytide.format.delta import log as delta
from keytide.format.iceberg import metadata as iceberg
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["DELTA", "ICEBERG", "check_publication", "why_read_otherwise"]

DELTA = "delta"
ICEBERG = "iceberg"

_WHY_NO_COLUMN: Mapping[str, Callable[[Field], str | None]] = {
    DELTA: delta.why_no_column,
    ICEBERG: iceberg.why_no_column,
}


def check_publication(schema: TableSchema, options: TableOptions) -> None:
    """Refuse to publish a table that other readers would read differently than Keytide.

    Raises `UnsupportedError`, which names the column or option.
    """
    told = f"'{keys.PUBLISH}' = '{','.join(options.publish)}' cannot be set"
    for form in options.publish:
        reason = why_read_otherwise(schema, options, form)
        if reason is not None:
            raise UnsupportedError(f"{told}: {reason}; remove one of them")
    _check_alone(options, told)
    by_level = dict(options.file_formats_by_level)
    others = {
        keys.FILE_FORMAT: {options.file_format},
        keys.FILE_FORMAT_PER_LEVEL: {*by_level.values()},
    }
    key = next((key for key, formats in others.items() if formats - {"parquet"}), None)
    if options.publish and key is not None:
        raise UnsupportedError(
            f"{told} with '{key}' = '{options.raw[key]}': other readers support only Parquet "
            "files; set it to 'parquet', or remove one of them"
        )


def _check_alone(options: TableOptions, told: str) -> None:
    """Refuse two independent writers of Iceberg metadata."""
    storage = options.value(keys.METADATA_ICEBERG_STORAGE)
    if ICEBERG in options.publish and storage != "disabled":
        raise UnsupportedError(
            f"{told} with '{keys.METADATA_ICEBERG_STORAGE}' = '{storage}', because other engines "
            "would write other metadata to the same folder; remove one of them"
        )


def why_read_otherwise(schema: TableSchema, options: TableOptions, form: str) -> str | None:
    """Why readers of a format would see other rows than Keytide. None if they would not."""
    for field in schema.fields:
        reason = _WHY_NO_COLUMN[form](field)
        if reason is not None:
            return f"column {field.name!r} is {field.type.sql()}, and {reason}"
    defaults = read_defaults(schema, options)
    if defaults:
        return (
            f"column {next(iter(defaults))!r} has a '{keys.DEFAULT_VALUE}', which other readers "
            "do not return instead of NULL"
        )
    if options.row_lifetime_ms is not None and schema.primary_keys:
        return (
            f"'{keys.RECORD_LEVEL_EXPIRE_TIME}' hides expired rows, which other readers would "
            "still return"
        )
    return None
