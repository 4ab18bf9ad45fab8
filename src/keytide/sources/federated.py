"""Federated tables: tables of another engine, with the keys by which their rows are merged.

In SQL they are tables of a connector. Reads merge rows as in an external table. Changes append
versions of keys, in one commit of the table's own engine (`federated_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from keytide.catalogs.catalog import fields_of
from keytide.definition.checks import check_dml_watermark
from keytide.definition.external import external_schema, refuse_secret, refuse_secret_options
from keytide.dml.spi import ConnectorSession
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.snapshot.view import TableView
from keytide.sources.appending import Appender
from keytide.sources.connector import ExternalHandle
from keytide.sources.creation import check_ties
from keytide.sources.formats import ExternalFormat, format_named
from keytide.sources.pinned import PinnedExternal
from keytide.sources.source import AppendableSource, Place
from keytide.store import Store
from keytide.write.task import WriteTask

__all__ = ["FederatedHandle", "FederatedTables", "UpsertKeys", "federated_tables"]


@dataclass(frozen=True)
class UpsertKeys:
    """The key columns that merge the versions of a federated table into rows.

    An argument that is not given comes from the table's own properties: `keytide.primary-key`,
    `keytide.watermark-key`, `keytide.tombstone-key`, `keytide.tombstone-string-key-value` and
    `keytide.dml-watermark`, with commas between several columns. `dml_watermark` is what UPDATE,
    DELETE and MERGE store in the watermark key: 'copy', 'statement-time' or 'explicit'.
    """

    primary_key: Sequence[str] = ()
    watermark_key: Sequence[str] = ()
    tombstone_key: str | None = None
    tombstone_string_key_value: str | None = None
    dml_watermark: str | None = None


_PRIMARY_KEY = f"keytide.{keys.PRIMARY_KEY}"
_PROPERTIES = {
    keys.WATERMARK_KEY: "keytide.watermark-key",
    keys.TOMBSTONE_KEY: "keytide.tombstone-key",
    keys.TOMBSTONE_STRING_KEY_VALUE: "keytide.tombstone-string-key-value",
    keys.UPSERT_DML_WATERMARK: "keytide.dml-watermark",
}


def _options(given: UpsertKeys, properties: Mapping[str, str]) -> dict[str, str]:
    """The options of a definition from these keys, or from a table's properties."""
    named = {
        keys.WATERMARK_KEY: ",".join(given.watermark_key) or None,
        keys.TOMBSTONE_KEY: given.tombstone_key,
        keys.TOMBSTONE_STRING_KEY_VALUE: given.tombstone_string_key_value,
        keys.UPSERT_DML_WATERMARK: given.dml_watermark,
    }
    told = {
        key: properties.get(_PROPERTIES[key]) if value is None else value
        for key, value in named.items()
    }
    return {key: value for key, value in told.items() if value is not None}


def _primary_key(given: UpsertKeys, properties: Mapping[str, str]) -> list[str]:
    """The columns of the primary key, empty if it is unknown."""
    told = properties.get(_PRIMARY_KEY, "")
    return [*given.primary_key] or [name.strip() for name in told.split(",") if name.strip()]


@dataclass(frozen=True)
class FederatedHandle(ExternalHandle):
    """A federated table at one version, and the change of a statement. See `ChangedByKey`."""

    name: str = ""
    required: frozenset[str] = frozenset()
    tells_order: bool = True
    has_begun: bool = False
    updated: tuple[str, ...] = ()
    cases: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    began_ns: int | None = None
    gives_keys: bool = False
    inserts_new_keys: bool = False

    def __str__(self) -> str:
        return f"table {self.table.name}"

    @property
    def view(self) -> TableView:
        """The table with its keys."""
        return self.table.view

    @property
    def task(self) -> WriteTask | None:
        """None, because workers write no files."""
        return None

    @property
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        return bool({*self.updated} & {*self.view.schema.primary_keys})

    @property
    def fresher_by(self) -> int:
        """See `ChangedByKey`."""
        return 0 if self.tells_order else 1


@dataclass(frozen=True)
class FederatedTables:
    """The tables of a folder, of a namespace of a catalog, or of a database.

    A statement sees the state of a table when it first reads it.
    """

    name: str
    format: str
    location: str
    options: Mapping[str, str]
    tables: Mapping[str, UpsertKeys]
    near: Store
    seen: WeakKeyDictionary[ConnectorSession, dict[tuple[str, str | None], FederatedHandle]] = (
        field(default_factory=WeakKeyDictionary, compare=False, repr=False)
    )

    def find(
        self, session: ConnectorSession, name: str, version: str | None = None
    ) -> FederatedHandle:
        """A table as the statement sees it. Raises what pinning does, and for invalid keys."""
        seen = self.seen.setdefault(session, {})
        wanted = self._spelled(name), version
        if wanted not in seen:
            seen[wanted] = self.pinned(name, version)
        return seen[wanted]

    def forget(self, session: ConnectorSession) -> None:
        """Forget the tables that a statement has seen."""
        self.seen.pop(session, None)

    def appender(self, name: str) -> Appender:
        """The appender of a table. Raises `UnsupportedError` if appending is not possible."""
        assert self._format.append is not None
        return self._format.append(self.place(name))

    def _spelled(self, name: str) -> str:
        return next((given for given in self.tables if given.lower() == name.lower()), name)

    @property
    def _format(self) -> ExternalFormat:
        return format_named(self.format)

    def place(self, name: str) -> Place:
        """The location of a table, without reading it."""
        name = self._spelled(name)
        if "table" in self._format.options:
            return Place(self.location, {**self.options, "table": name}, self.near)
        is_name = any(option in self.options for option in self._format.named_by)
        location = f"{self.location}.{name}" if is_name else f"{self.location.rstrip('/')}/{name}"
        return Place(location, self.options, self.near)

    def pinned(self, name: str, version: str | int | None = None) -> FederatedHandle:
        """A table in its current state, or at a version, read once. Raises as `find`."""
        name = self._spelled(name)
        source = self._format.open(self.place(name))
        pinned: Any = source.pin(version)
        schema = self._schema(name, pinned)
        options = TableOptions.parse(schema.options)
        full_name = f"{self.name}.{name}"
        view = TableView(self.near, full_name, schema, {schema.id: schema}, options)
        table = PinnedExternal(view, pinned, source.location)
        return FederatedHandle(
            table, name=name, required=pinned.required, tells_order=pinned.tells_order
        )

    def _schema(self, name: str, pinned: AppendableSource) -> TableSchema:
        """The existing columns with the keys. Raises `InvalidError` for invalid keys."""
        given, properties = self.tables.get(name, UpsertKeys()), pinned.properties
        key = _primary_key(given, properties)
        if not key:
            raise InvalidError(
                f"table {self.name}.{name}: its primary key is not known; give it with "
                f"Lake.attach(..., tables={{{name!r}: UpsertKeys(primary_key=[...], ...)}}), or "
                f"as the table property {_PRIMARY_KEY!r}"
            )
        options = _options(given, properties)
        try:
            schema, _ = external_schema(
                fields_of(pinned.schema),
                key,
                options,
                format_=self.format,
                location=self.location,
                on_read=True,
                comment=None,
                time_millis=0,
            )
            parsed = TableOptions.parse(schema.options)
            check_ties(self.format, parsed)
            check_dml_watermark(schema, parsed)
        except InvalidError as error:
            raise InvalidError(f"table {self.name}.{name}: {error}") from error
        return schema


def federated_tables(
    name: str,
    format_: str,
    location: str,
    options: Mapping[str, str],
    tables: Mapping[str, UpsertKeys],
    near: Store,
) -> FederatedTables:
    """The tables at a location. Nothing is read yet.

    Raises `InvalidError` for an unknown format or option, for table names that differ only in case,
    and for a secret. Raises `UnsupportedError` for a format that cannot be appended to.
    """
    refuse_secret(location)
    refuse_secret_options(options)
    found = format_named(format_.lower())
    if found.append is None:
        raise UnsupportedError(
            f"Lake.attach: appending rows to {format_} is not supported; for reading, define an "
            "external table with Lake.create_external_table"
        )
    taken = [option for option in found.options if option != "table"]
    unknown = sorted(set(options) - set(taken))
    if unknown:
        raise InvalidError(
            f"Lake.attach: format {format_} has no option {unknown[0]!r}; options: "
            f"{', '.join(taken) or 'none'}"
        )
    folded = [table.lower() for table in tables]
    if len(set(folded)) < len(folded):
        raise InvalidError(
            f"Lake.attach: table names are case-insensitive, and two of {', '.join(tables)} are "
            "the same; name each once"
        )
    return FederatedTables(name, format_.lower(), location, dict(options), dict(tables), near)
