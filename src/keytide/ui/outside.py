"""What has no snapshots in the lake: external and federated tables, attached tables, and views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from keytide.catalogs.stored_view import StoredView
from keytide.definition.external import given_options
from keytide.dml.attached import AttachedCatalog
from keytide.errors import KeytideError, UnsupportedError
from keytide.lake.external_table import ExternalTable
from keytide.lake.federated_table import FederatedTable
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.lake import Lake
from keytide.sql.local_engine import LocalEngine
from keytide.sql.making_views import described_view
from keytide.sql.show import create_statement, describe, view_statement
from keytide.ui.overview import ColumnLine

__all__ = ["Outside", "Source", "outside_of", "source_of"]


@dataclass(frozen=True)
class Outside:
    """A table or view without snapshots: what it is and its definition.

    `facts` are label and value. `definition` is the SQL that would define it again, None where SQL
    has no statement for that. `problem` says why the columns are unknown. `has_source` says whether
    `source_of` finds out more.
    """

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    columns: tuple[ColumnLine, ...]
    comment: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    definition: str | None = None
    problem: str | None = None
    has_source: bool = False


@dataclass(frozen=True)
class Source:
    """What a source has now: its version, and how many parts and stored versions of keys.

    None where the format does not know.
    """

    version: str | None
    parts: int
    rows: int | None


def outside_of(lake: Lake, name: str) -> Outside:
    """What is known of a view, an external or an attached table without reading its rows.

    Raises `NotFoundError` for an unknown name, and as `Lake.table`.
    """
    catalog = lake.catalog
    if catalog.find_attached(name) is not None:
        return _attached(lake, name)
    try:
        table = lake.table(name)
    except UnsupportedError:
        if (view := catalog.find_view(name)) is None:
            raise
        return _view(catalog, view, lake.allows_external_files)
    assert isinstance(table, ExternalTable)
    schema = table.table_schema
    return Outside(
        table.name,
        "external table",
        (("Format", table.format), ("Location", table.location)),
        tuple(_columns(describe(catalog, table.name, extended=False))),
        schema.comment,
        tuple(sorted(given_options(schema).items())),
        create_statement(schema, table.name),
        has_source=True,
    )


def source_of(table: ForeignTable) -> Source:
    """What is there now. Reads no rows. Raises as `ExternalScan.explain`."""
    scan = table.scan()
    explained = scan.explain()
    return Source(scan.version, explained.parts, explained.rows)


def _attached(lake: Lake, name: str) -> Outside:
    columns = tuple(_columns(describe(lake.catalog, name, extended=False)))
    attached = name.partition(".")[0].lower()
    if not _is_federated(lake, name):
        connector = lake.catalog.attached[attached].name
        return Outside(
            name, f"table of connector {connector}", (("Attached as", attached),), columns
        )
    table = lake.table(name)
    assert isinstance(table, FederatedTable)
    schema = table.table_schema
    facts = (("Attached as", attached), ("Format", table.format), ("Location", table.location))
    options = tuple(sorted(given_options(schema).items()))
    return Outside(
        name, "federated table", facts, columns, schema.comment, options, has_source=True
    )


def _is_federated(lake: Lake, name: str) -> bool:
    """Whether keys merge the rows of an attached table, so that it can be opened."""
    try:
        return isinstance(lake.table(name), FederatedTable)
    except KeytideError:
        return False


def _view(catalog: AttachedCatalog, view: StoredView, allows_external_files: bool) -> Outside:
    facts = (("Names without a database are in", view.database),)
    columns: tuple[ColumnLine, ...] = ()
    problem = None
    try:
        engine = LocalEngine(allows_external_files)
        columns = tuple(_columns(described_view(catalog, engine, view, extended=False)))
    except KeytideError as error:  # such as a table of it that was dropped
        problem = str(error)
    return Outside(
        view.name, "view", facts, columns, view.comment,
        definition=view_statement(view), problem=problem,
    )  # fmt: skip


def _columns(described: pa.Table) -> Iterator[ColumnLine]:
    """The columns that DESCRIBE lists."""
    for row in described.to_pylist():
        yield _column(row)


def _column(row: Mapping[str, str | None]) -> ColumnLine:
    type_ = row["type"] or ""
    is_nullable = not type_.endswith(" NOT NULL")
    return ColumnLine(
        row["name"] or "", type_.removesuffix(" NOT NULL"), row["role"] or "", is_nullable,
        None, row["comment"],
    )  # fmt: skip
