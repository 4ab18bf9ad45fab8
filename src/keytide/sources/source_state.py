"""An external table at one version, for everything that a statement reads from it.

`FORMATS` has the formats of external tables by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, replace
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.predicate.predicate import Predicate
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable
from keytide.sources import appends, database, delta, iceberg, table_source
from keytide.sources.appends import Appender
from keytide.sources.files import CsvFiles, JsonFiles, ParquetFiles
from keytide.sources.folder import open_folder
from keytide.sources.parquet import source_condition
from keytide.sources.source import (
    PinnedSource,
    Place,
    Source,
    format_of,
    is_read_on_demand,
    location_of,
    source_options,
)
from keytide.sources.versions import SourceVersions, numbers_of
from keytide.store import Store

# -- formats ---------------------------------------------------------------------------------------


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
    database.open_source, database.OPTIONS, tells_order=False, append=appends.open_database_appender
)
FORMATS: Mapping[str, ExternalFormat] = {
    "parquet": ExternalFormat(partial(open_folder, format_=ParquetFiles()), tells_order=False),
    "csv": ExternalFormat(
        lambda place: open_folder(place, CsvFiles.of(place.options)),
        ("delimiter", "quote", "null-value"),
        tells_order=False,
    ),
    "json": ExternalFormat(partial(open_folder, format_=JsonFiles()), tells_order=False),
    "delta": ExternalFormat(delta.open_source, append=appends.open_delta_appender),
    "iceberg": ExternalFormat(
        iceberg.open_source,
        iceberg.OPTIONS,
        named_by=("catalog.uri",),
        append=appends.open_iceberg_appender,
    ),
    "sqlite": _DATABASE,
    "postgresql": _DATABASE,
    "keytide": ExternalFormat(table_source.open_source),
    "paimon": ExternalFormat(table_source.open_source),
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


# -- a pinned version ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PinnedExternal:
    """A definition, and the version of the source that is read. Can be pickled."""

    view: TableView
    source: PinnedSource
    location: str

    @property
    def name(self) -> str:
        """The table's name."""
        return self.view.name

    def __str__(self) -> str:
        version = "" if self.source.version is None else f", version {self.source.version}"
        return f"{format_of(self.view.schema)} at {self.location}{version}"

    def versions(self, key_condition: Predicate | None = None) -> SourceVersions:
        """The versions of keys. Those whose key does not match the condition can be skipped.

        Raises `InvalidError` if the definition names columns that do not exist.
        """
        self.check_columns()
        asked = source_condition(key_condition, self.view.schema.fields, self.source.schema)
        parts: Any = self.source.parts(asked)
        if not {*self.source.cut_by} <= {*self.view.schema.primary_keys}:
            # A key can be in several partitions of a commit, so the parts are unordered. This
            # depends on the definition only: which other rows a commit has, and which of its files
            # a query reads, must not decide a tie.
            parts = [replace(part, is_in_order=False) for part in parts]
        return SourceVersions(self.view, tuple(parts), numbers_of(parts), key_condition, asked)

    def check_columns(self) -> None:
        """Raise `InvalidError` if the definition names columns that do not exist."""
        there = self.source.schema.names
        lacking = [name for name in self.view.schema.names if name not in there]
        if not lacking:
            return

        # The role of a missing column without which rows cannot be merged.
        schema = self.view.schema
        options = TableOptions.parse(schema.options)
        roles = (
            ("in its primary key", schema.primary_keys),
            ("as its watermark key", options.watermark_key),
            ("as its tombstone key", options.tombstone_key),
        )
        found = [role for role, names in roles if set(names) & set(lacking)]
        role = f" {found[0]}" if found else ""
        way_out = (
            "CALL sys.refresh, or ExternalTable.refresh, updates the columns"
            if is_read_on_demand(self.view.schema) and not role
            else "restore it in the source, or DROP the definition and create it again"
        )
        raise InvalidError(
            f"table {self.name}: {self} has no column {lacking[0]!r}, which the definition "
            f"has{role}; columns: {', '.join(there) or 'none'}. {way_out}"
        )


def source_of(schema: TableSchema, near: Store, *, anew: bool = False) -> Source:
    """The source of a definition. Nothing is read yet.

    With `anew`, the columns are those found at the source, whatever the definition says.
    """
    columns = None if anew else schema.arrow_schema()
    options = TableOptions.parse(schema.options)
    order = (*options.watermark_key, *options.tombstone_key)
    place = Place(
        location_of(schema),
        source_options(schema.options),
        near,
        columns,
        (*schema.primary_keys, *order),
    )
    return open_source(format_of(schema), place)


def pin_external(entry: PinnedTable, version: str | int | None = None) -> PinnedExternal:
    """The current state of an external table, or a version. Read once for all users of this entry.

    Raises what `Source.pin` does.
    """
    return entry.once(("external", version), partial(_pin, entry, version))


def _pin(entry: PinnedTable, version: str | int | None) -> PinnedExternal:
    schema = entry.schema
    options = TableOptions.parse(schema.options)
    view = TableView(entry.store, entry.name, schema, {schema.id: schema}, options)
    source = source_of(schema, entry.store)
    return PinnedExternal(view, source.pin(version), source.location)
