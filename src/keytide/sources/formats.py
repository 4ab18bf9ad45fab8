"""The formats of external tables, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.sources import (
    database,
    database_append,
    delta,
    delta_append,
    iceberg,
    iceberg_append,
    stored,
)
from keytide.sources.appending import Appender
from keytide.sources.folder import csv_folder, json_folder, parquet_folder
from keytide.sources.source import Place, Source

__all__ = ["FORMATS", "ExternalFormat", "format_named", "open_source"]


@dataclass(frozen=True)
class ExternalFormat:
    """A format: how it is opened, its option names, and whether it records when rows arrived.

    `open` reads nothing yet. `append` opens an appender, if supported. If an option in `named_by`
    is given, a location is a name and not a path or address. If `tells_order` is false, only the
    watermark can order the versions of a key (rule R3 of docs/semantics.md).
    """

    open: Callable[[Place], Source]
    options: tuple[str, ...] = ()
    tells_order: bool = True
    named_by: tuple[str, ...] = ()
    append: Callable[[Place], Appender] | None = None


_DATABASE = ExternalFormat(
    database.open_source,
    database.OPTIONS,
    tells_order=False,
    append=database_append.open_appender,
)
FORMATS: Mapping[str, ExternalFormat] = {
    "parquet": ExternalFormat(parquet_folder, tells_order=False),
    "csv": ExternalFormat(csv_folder, ("delimiter", "quote", "null-value"), tells_order=False),
    "json": ExternalFormat(json_folder, tells_order=False),
    "delta": ExternalFormat(delta.open_source, append=delta_append.open_appender),
    "iceberg": ExternalFormat(
        iceberg.open_source,
        iceberg.OPTIONS,
        named_by=("catalog.uri",),
        append=iceberg_append.open_appender,
    ),
    "sqlite": _DATABASE,
    "postgresql": _DATABASE,
    "keytide": ExternalFormat(stored.open_source),
    "paimon": ExternalFormat(stored.open_source),
}


def format_named(name: str) -> ExternalFormat:
    """The format with a lower-case name. Raises `InvalidError`, listing the formats."""
    if name in FORMATS:
        return FORMATS[name]
    raise InvalidError(
        f"{shown(name)} is not a format of external tables; formats: {', '.join(FORMATS)}"
    )


def open_source(name: str, place: Place) -> Source:
    """The source at a place. Raises `InvalidError` for options that the format does not have."""
    found = format_named(name)
    unknown = [option for option in place.options if option not in found.options]
    if unknown:
        there = ", ".join(found.options) or "none"
        raise InvalidError(f"format {name} has no option {unknown[0]!r}; options: {there}")
    return found.open(place)
