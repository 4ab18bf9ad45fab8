"""An external table at one version, for everything that a statement reads from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from keytide.definition.external import (
    format_of,
    is_read_on_demand,
    location_of,
    source_options,
)
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.predicate.predicate import Predicate
from keytide.snapshot.pinned import PinnedTable
from keytide.snapshot.state import TableView
from keytide.sources.formats import open_source
from keytide.sources.key_conditions import asked_of_source
from keytide.sources.source import PinnedSource, Place, Source, SourcePart, in_no_order
from keytide.sources.versions import SourceVersions, numbers_of
from keytide.store import Store

__all__ = ["PinnedExternal", "pin_external", "source_of"]


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

    def versions(self, about_key: Predicate | None = None) -> SourceVersions:
        """The versions of keys. Those whose key does not match the condition can be skipped.

        Raises `InvalidError` if the definition names columns that do not exist.
        """
        self.check_columns()
        asked = asked_of_source(about_key, self.view.schema.fields, self.source.schema)
        parts = self._placed(self.source.parts(asked))
        return SourceVersions(self.view, parts, numbers_of(parts), about_key, asked)

    def _placed(self, parts: Sequence[SourcePart]) -> tuple[SourcePart, ...]:
        """The parts, marked as unordered if a key can be in several partitions of a commit.

        This depends on the definition only: which other rows a commit has, and which of its files
        a query reads, must not decide a tie.
        """
        if {*self.source.cut_by} <= {*self.view.schema.primary_keys}:
            return tuple(parts)
        return tuple(map(in_no_order, parts))

    def check_columns(self) -> None:
        """Raise `InvalidError` if the definition names columns that do not exist."""
        there = self.source.schema.names
        lacking = [name for name in self.view.schema.names if name not in there]
        if not lacking:
            return
        role = _role(self.view.schema, lacking)
        way_out = (
            "CALL sys.refresh, or ExternalTable.refresh, updates the columns"
            if is_read_on_demand(self.view.schema) and not role
            else "restore it in the source, or DROP the definition and create it again"
        )
        raise InvalidError(
            f"table {self.name}: {self} has no column {lacking[0]!r}, which the definition "
            f"has{role}; columns: {', '.join(there) or 'none'}. {way_out}"
        )


def _role(schema: TableSchema, lacking: list[str]) -> str:
    """The role of a missing column without which rows cannot be merged."""
    options = TableOptions.parse(schema.options)
    roles = (
        ("in its primary key", schema.primary_keys),
        ("as its watermark key", options.watermark_key),
        ("as its tombstone key", options.tombstone_key),
    )
    found = [role for role, names in roles if set(names) & set(lacking)]
    return f" {found[0]}" if found else ""


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
