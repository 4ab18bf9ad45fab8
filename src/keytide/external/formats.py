"""The formats that external tables may have, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keytide.arguments import shown
from keytide.errors import InvalidError
from keytide.external import (
    database,
    database_append,
    delta,
    delta_append,
    iceberg,
    iceberg_append,
    stored,
)
from keytide.external.appending import Appender
from keytide.external.folder import csv_folder, json_folder, parquet_folder
from keytide.external.source import Place, Source

__all__ = ["FORMATS", "ExternalFormat", "format_named", "open_source"]


@dataclass(frozen=True)
class ExternalFormat:
    """A format: what opens it, the names of its options, and whether it tells when rows came.

    `open` looks at nothing yet; `append` opens what rows are appended by, where that can be. With
    one of the options `named_by` a location is a name, and no path or address. Where `tells_order`
    is false, no version of a key is later than another one but by its watermark (rule R3 of
    docs/semantics.md).
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
    """The format of a name in lower case. Raises `InvalidError` naming those there are."""
    if name in FORMATS:
        return FORMATS[name]
    raise InvalidError(
        f"{shown(name)} is no format of external tables; there is {', '.join(FORMATS)}"
    )


def open_source(name: str, place: Place) -> Source:
    """What lies at a place. Raises `InvalidError` for options that the format does not know."""
    found = format_named(name)
    unknown = [option for option in place.options if option not in found.options]
    if unknown:
        there = ", ".join(found.options) or "none"
        raise InvalidError(f"format {name} has no option {unknown[0]!r}; it has: {there}")
    return found.open(place)
