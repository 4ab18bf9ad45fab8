"""One mention of a table in a query: its columns, and what the query needs from it.

A table of the lake is read by a scan, a system table is computed as a whole, an attached table is
read from its connector in pages, and rows from the caller already exist. An SQL name is looked up
by an exact match, otherwise by a case-insensitive match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.system_tables import changes_log, system_table
from keytide.dml.attachments import PagesScan
from keytide.dml.spi import Connector, ConnectorSession, ConnectorTableHandle
from keytide.predicate.condition import text_of
from keytide.predicate.predicate import Predicate, conjunction
from keytide.read import fallback
from keytide.read.fallback import FallbackScan
from keytide.read.requests import narrowed_scan, scan_table, selected_columns
from keytide.read.scan import Scan
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.sources.scan import ExternalHandle, ExternalScan
from keytide.types import Field, type_from_arrow

# -- relations -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relation(ABC):
    """One mention of a table. `columns` None reads all columns. `terms` are pushed conditions."""

    view: str
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)
    terms: tuple[Predicate, ...] = field(default=(), kw_only=True)

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name."""

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """The columns of the table."""

    @abstractmethod
    def plan_lines(self) -> list[str]:
        """Lines that describe what is read, without reading it."""

    def narrowed(self, columns: tuple[str, ...] | None, terms: tuple[Predicate, ...]) -> Relation:
        """The relation restricted to some columns, and to rows that match the terms."""
        return replace(self, columns=columns, terms=terms)

    def needs(self) -> list[str]:
        """Lines that list the columns and conditions of the read."""
        return [
            f"columns: {', '.join(self.columns or ()) or 'all'}",
            f"read by: {self._shown(self.terms)}",
        ]

    def _shown(self, terms: Sequence[Predicate]) -> str:
        predicate = conjunction(terms)
        return "no condition" if predicate is None else text_of(predicate, self.fields)


@dataclass(frozen=True)
class _LakeRelation(Relation):
    """A table of the lake, at the snapshot that `travel` selects, otherwise the latest."""

    table: StoredTable
    travel: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the table."""
        return self._all.fields

    @abstractmethod
    def scan(self) -> Scan | FallbackScan:
        """The rows."""

    def plan_lines(self) -> list[str]:
        """The scan's explanation, and what the query needs."""
        return [*str(self.scan().explain()).splitlines(), *self.needs()]

    @property
    @abstractmethod
    def _all(self) -> Scan | FallbackScan: ...


@dataclass(frozen=True)
class StoredRelation(_LakeRelation):
    """A table of the lake that is read from one branch."""

    def scan(self) -> Scan:
        """The rows."""
        return narrowed_scan(self._all, self.columns, conjunction(self.terms))

    @property
    def _all(self) -> Scan:
        table, what = self.table.pinned(), ("scan", *sorted(self.travel.items()))
        return table.once(what, lambda: scan_table(table, **self.travel))


@dataclass(frozen=True)
class FallbackRelation(_LakeRelation):
    """A table of the lake whose options name a second branch to read."""

    def scan(self) -> FallbackScan:
        """The rows."""
        columns = selected_columns(self.name, self._all.view.schema, self.columns)
        return replace(self._all, columns=columns, predicate=conjunction(self.terms))

    @property
    def _all(self) -> FallbackScan:
        table, what = self.table.pinned(), ("scan", *sorted(self.travel.items()))
        scan = table.once(what, lambda: fallback.scan_table(table, **self.travel))
        assert isinstance(scan, FallbackScan)
        return scan


@dataclass(frozen=True)
class SystemRelation(Relation):
    """A system table of a table in the lake."""

    table: PinnedTable
    system: str
    travel: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the table that it describes."""
        return self.table.name

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the system table."""
        return _fields(self.rows().schema)

    def rows(self) -> pa.Table:
        """The rows."""
        if "between" in self.travel:
            make = partial(changes_log, self.table, **self.travel)
        else:
            make = partial(system_table, self.table, self.system, **self.travel)
        rows = self.table.once(("system", self.system, *sorted(self.travel.items())), make)
        return rows if self.columns is None else rows.select(list(self.columns))

    def narrowed(self, columns: tuple[str, ...] | None, terms: tuple[Predicate, ...]) -> Relation:
        """The relation restricted to some columns. All its rows are computed in any case."""
        return replace(self, columns=columns)

    def plan_lines(self) -> list[str]:
        """Its name."""
        return [f"system table {self.table.name}${self.system}"]


@dataclass(frozen=True)
class AttachedRelation(Relation):
    """A table of a connector. `attached` is the name of the attachment."""

    connector: Connector
    handle: ConnectorTableHandle
    session: ConnectorSession
    attached: str

    @property
    def name(self) -> str:
        """The table's name, as a query writes it."""
        schema = self.connector.metadata.get_table_schema(self.session, self.handle)
        return f"{self.attached}.{schema.name}"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the table."""
        return _fields(self._all().schema)

    def scan(self) -> PagesScan:
        """The rows."""
        scan = replace(self._all(), terms=self.terms)
        if self.columns is None:
            return scan
        by_name = {column.name: column for column in scan.columns}
        return replace(scan, columns=tuple(by_name[name] for name in self.columns))

    def plan_lines(self) -> list[str]:
        """The connector, the conditions that it accepts, and its number of splits."""
        scan = self.scan()
        _, left = scan.narrowed()
        taken = [term for term in self.terms if term not in left]
        return [
            f"table {self.name} of connector {self.connector.name}",
            f"splits: {len(scan.tasks())}",
            *self.needs(),
            f"applied by the connector: {self._shown(taken)}",
        ]

    def _all(self) -> PagesScan:
        schema = self.connector.metadata.get_table_schema(self.session, self.handle)
        return PagesScan(self.connector, self.session, self.handle, schema.columns)


@dataclass(frozen=True)
class ExternalRelation(AttachedRelation):
    """An external table of the lake, at one version."""

    handle: ExternalHandle

    @property
    def name(self) -> str:
        """The table's name."""
        return self.handle.table.name

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the table, in the types of its definition."""
        return self.handle.table.view.schema.fields

    def plan_lines(self) -> list[str]:
        """What is read, and the conditions that apply before versions are merged (rule R17)."""
        columns = tuple(f.name for f in self.fields) if self.columns is None else self.columns
        scan = ExternalScan(self.handle.table, columns, conjunction(self.terms))
        return [*str(scan.explain()).splitlines(), *self.needs()]


@dataclass(frozen=True)
class CallerRelation(Relation):
    """Rows from the caller: an Arrow table, or rows in the engine's own form."""

    rows: Any
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The name in messages."""
        return "of the given rows"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return _fields(self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are needed."""
        return tuple(self.schema.names) if self.columns is None else self.columns

    def narrowed(self, columns: tuple[str, ...] | None, terms: tuple[Predicate, ...]) -> Relation:
        """The relation restricted to some columns. All its rows exist in any case."""
        return replace(self, columns=columns)

    def plan_lines(self) -> list[str]:
        """A line that says that the rows are given."""
        return [f"given rows: {', '.join(self.names)}"]


def _fields(schema: pa.Schema) -> tuple[Field, ...]:
    return tuple(Field(-1, c.name, type_from_arrow(c.type)) for c in schema)


# -- aliases of a SELECT ---------------------------------------------------------------------------


def without_aliases(node: exp.Expr) -> exp.Expr:
    """Replace the names that a SELECT itself defines, which begin with `$`, by their expressions.

    REQUIRES: no column of its tables has such a name.
    """
    if isinstance(node, exp.Select):
        known: dict[str, exp.Expr] = {}
        for each in node.expressions:
            for column in list(each.find_all(exp.Column)):
                if not column.table and column.name in known:
                    column.replace(exp.paren(known[column.name].copy()))
            if isinstance(each, exp.Alias) and each.alias.startswith("$"):
                known[each.alias] = each.this
    return node
