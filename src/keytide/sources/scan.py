"""Reads of external tables: scans, explanations, changes, and the connector for SQL.

- A scan has some columns of the rows of one version that match a condition. An explanation shows
  the versions of a key in the source, and the effect of each. Changes between two versions are
  computed by comparing rows by key.
- The connector lets SQL and Spark read the tables. It offers no changes, because another engine
  writes the rows. A table is one split, because its rows have no key order. The split is merged
  within 'read.memory' of the definition. Spark shuffles the versions of a large table instead, see
  `keytide.sources.shuffle`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import refuse_forked_child, scratch
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.base.text import counted
from keytide.changes.stored_rows import with_shown_kind
from keytide.dml.attachments import PagesScan
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorMetadata,
    ConnectorPageSource,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorSplitManager,
    ConnectorTableSchema,
)
from keytide.errors import InvalidError, KeytideError
from keytide.format.arrow import in_python, polars_schema, to_arrow
from keytide.merge.explanation import VERSION, outcomes, provenance_of
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND, difference
from keytide.predicate.condition import Condition, predicate_of, text_of
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.read.requests import (
    in_order_of_keys,
    key_condition,
    key_values_of,
    keys_condition,
    selected_columns,
)
from keytide.read.scan import RowSource, check_limit
from keytide.read.why import Why, versions_schema
from keytide.show.elements import columns_table, notebook, problem
from keytide.show.explanations import Plan, plan_list
from keytide.snapshot.state import TableView
from keytide.sources.source_state import PinnedExternal
from keytide.sources.version_merge import KeyCut, SourceMerge, split_condition
from keytide.sources.versions import SourceVersions
from keytide.types import Field, parse_sql_type
from keytide.types.logical import widened

# -- changes ---------------------------------------------------------------------------------------


_KIND_FIELD = Field(-1, ROW_KIND, parse_sql_type("STRING NOT NULL"))
_PARTS = 16


@dataclass(frozen=True)
class ExternalChanges(RowSource):
    """What changed between two versions of an external table, as rows with their `_row_kind`.

    Keys in only one of the versions give '+I' or '-D'. Rows that differ give the before image '-U',
    directly followed by the after image '+U'. Lazy: nothing is read until a method asks for rows.
    """

    before: PinnedExternal
    after: PinnedExternal
    threads: int = 1

    snapshot_ids = ()  # external tables have no snapshots in the lake

    @property
    def view(self) -> TableView:
        """The table's definition."""
        return self.after.view

    @property
    def versions(self) -> tuple[str | None, str | None]:
        """The two versions, from older to newer."""
        return self.before.source.version, self.after.source.version

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result: `_row_kind` and the columns of the table."""
        return (_KIND_FIELD, *self.view.schema.fields)

    def tasks(self) -> list[ChangesTask]:
        """The work as a list of one picklable task.

        Raises what reading the source's metadata does, and `InvalidError` for a column whose older
        values cannot be read as its current type.
        """
        refuse_forked_child()
        # The columns that the older version has too.
        then = self.before.view.schema.by_name
        known = [field for field in self.view.schema.fields if field.name in then]
        try:
            for field in known:
                widened(then[field.name].type, field.type, (field.name,))
        except InvalidError as error:
            raise InvalidError(
                f"table {self.view.name}: versions {' and '.join(map(str, self.versions))} "
                f"cannot be compared: {error}"
            ) from error
        before = SourceMerge(self.before.versions(), tuple(field.name for field in known))
        return [ChangesTask(before, SourceMerge(self.after.versions(), self.view.schema.names))]

    def count(self) -> int:
        """The number of rows. Raises as `to_batches`."""
        return sum(frame.height for frame in self._frames())


@dataclass(frozen=True)
class ChangesTask:
    """Merges both versions and compares them, one part of the keys at a time. Can be pickled.

    A column that the older version lacks is NULL there.
    """

    before: SourceMerge
    after: SourceMerge

    @property
    def view(self) -> TableView:
        """See `FramesTask`."""
        return self.after.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """See `FramesTask`."""
        names, key = self.view.schema.names, self.view.schema.primary_keys
        share = memory_bytes // 4
        empty = pl.DataFrame(schema=polars_schema(self.view.schema.fields))
        with (
            closing(KeyCut(key, _PARTS, share)) as then,
            closing(KeyCut(key, _PARTS, share)) as now,
        ):
            for cut, side in ((then, self.before), (now, self.after)):
                for rows in side.frames(memory_bytes - 2 * share):
                    # Rows with the columns and types of the newer version.
                    with_columns_of = rows.select(
                        (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(
                            type_
                        )
                        for name, type_ in empty.schema.items()
                    )
                    cut.add(with_columns_of)
            for before, after in zip(then.parts(), now.parts(), strict=True):
                changed = difference(pl.concat([empty, *before]), pl.concat([empty, *after]), key)
                if changed.height:
                    yield with_shown_kind(changed, names)


# -- the connector ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExternalHandle:
    """An external table at one version, with a condition on its rows."""

    table: PinnedExternal
    predicate: Predicate | None = None

    def __str__(self) -> str:
        return f"table {self.table.name}"


class ExternalMetadata(ConnectorMetadata):
    """See `ConnectorMetadata`. Names are resolved by the catalog, which has the definitions."""

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """Empty, because the catalog resolves names."""
        return ()

    def get_table_handle(self, session: ConnectorSession, name: str) -> ExternalHandle | None:
        """See `list_tables`."""
        return None

    def get_table_schema(
        self, session: ConnectorSession, table: ExternalHandle
    ) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.table.view.schema
        columns = (ColumnHandle(f.name, f.type, f.nullable) for f in schema.arrow_schema())
        return ConnectorTableSchema(table.table.name, tuple(columns), schema.primary_keys)

    def apply_filter(
        self, session: ConnectorSession, table: ExternalHandle, terms: Sequence[Predicate]
    ) -> tuple[ExternalHandle, Sequence[Predicate]]:
        """See `ConnectorMetadata`.

        All terms are accepted. Most of them are applied after merging.
        """
        predicate = conjunction([*conjuncts(table.predicate), *terms])
        return replace(table, predicate=predicate), ()


@dataclass(frozen=True)
class ExternalSplits(ConnectorSplitManager):
    """A single split: the versions to merge."""

    def get_splits(
        self, session: ConnectorSession, table: ExternalHandle
    ) -> Sequence[SourceVersions]:
        """See `ConnectorSplitManager`."""
        key_terms, _ = split_condition(table.predicate, table.table.view.schema.primary_keys)
        return [table.table.versions(key_terms)]


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: ExternalHandle,
        split: SourceVersions,
        columns: Sequence[ColumnHandle],
    ) -> _PageSource:
        return _PageSource(table, split, tuple(column.name for column in columns))


class _PageSource(ConnectorPageSource):
    def __init__(
        self, table: ExternalHandle, split: SourceVersions, columns: tuple[str, ...]
    ) -> None:
        self._pages = merged_pages(table, split, columns)

    def get_next_page(self) -> pa.RecordBatch | None:
        return next(self._pages, None)

    def close(self) -> None:
        self._pages.close()


def merged_pages(
    table: ExternalHandle, split: SourceVersions, columns: tuple[str, ...]
) -> Generator[pa.RecordBatch, None, None]:
    """Some columns of the merged rows of a split that match the condition of a handle."""
    view = split.view
    _, rest = split_condition(table.predicate, view.schema.primary_keys)
    merging = SourceMerge(split, columns, rest)
    whole = view.schema.arrow_schema()
    schema = pa.schema([whole.field(name) for name in merging.columns])
    for frame in merging.frames(view.options.read_memory_bytes):
        yield from to_arrow(frame, schema).to_batches()


EXTERNAL_TABLES = Connector("external tables", ExternalMetadata(), ExternalSplits(), _Pages())
"""The connector for handles of external tables."""


# -- scans -----------------------------------------------------------------------------------------


def scan_external(
    table: PinnedExternal,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    limit: int | None = None,
) -> ExternalScan:
    """A scan. Raises `NotFoundError` and `InvalidError` for invalid columns, conditions, limits."""
    check_limit(limit, table.name)
    schema = table.view.schema
    predicate = None if where is None else predicate_of(where, schema.fields, table.name)
    selected = selected_columns(table.name, schema, columns)
    return ExternalScan(table, selected, predicate, limit=limit)


def get_external(table: PinnedExternal, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    """The row of one key, or None."""
    schema = table.view.schema
    scan = ExternalScan(table, schema.names, key_condition(key, schema, table.name))
    found = scan.to_polars()
    return in_python(to_arrow(found, scan.schema))[0] if found.height else None


def get_many_external(table: PinnedExternal, keys: Sequence[Any]) -> pa.Table:
    """The existing rows of some keys, in the order of the keys, each row once."""
    schema = table.view.schema
    wanted, condition = keys_condition(keys, schema, table.name)
    scan = ExternalScan(table, schema.names, condition)
    return in_order_of_keys(scan.to_polars(), wanted, schema)


@dataclass(frozen=True)
class ExternalScan(RowSource):
    """Rows of one version: one merged row per key, in no particular order.

    A scan is lazy and keeps reading its version, as long as the source keeps that version. Methods
    that return everything need memory for the result. `to_batches` needs only as much as
    'read.memory' allows.
    """

    table: PinnedExternal
    columns: tuple[str, ...]
    predicate: Predicate | None = None
    threads: int = 1
    limit: int | None = None

    snapshot_ids = ()  # external tables have no snapshots in the lake

    def __repr__(self) -> str:
        parts = [self.view.name, f"version {self.version}", f"columns {', '.join(self.columns)}"]
        if self.predicate is not None:
            parts.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            parts.append(f"limit {self.limit}")
        return f"ExternalScan({'; '.join(parts)})"

    @property
    def view(self) -> TableView:
        """The table's definition."""
        return self.table.view

    @property
    def version(self) -> str | None:
        """The version that is read, None if the format has no versions."""
        return self.table.source.version

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result."""
        return self.view.schema.select(self.columns)

    def tasks(self) -> list[SourceMerge]:
        """The scan as a list of one picklable task.

        Raises what reading the source's metadata does.
        """
        refuse_forked_child()
        key_terms, rest = split_condition(self.predicate, self.view.schema.primary_keys)
        return [SourceMerge(self.table.versions(key_terms), self.columns, rest)]

    def pages(self) -> PagesScan:
        """The same as a scan of a connector."""
        handle = ExternalHandle(self.table, self.predicate)
        columns = (ColumnHandle(f.name, f.type, f.nullable) for f in self.schema)
        session = ConnectorSession()
        return PagesScan(EXTERNAL_TABLES, session, handle, tuple(columns))

    def count(self) -> int:
        """The number of rows. Raises as `to_batches`."""
        one_column = replace(self, columns=self.view.schema.primary_keys[:1])
        return sum(frame.height for frame in one_column._frames())

    def explain(self) -> ExternalExplanation:
        """The plan of the scan. Reads no rows. Raises as `tasks`."""
        key_terms, rest = split_condition(self.predicate, self.view.schema.primary_keys)
        parts = self.table.source.parts(key_terms)
        rows = [part.rows for part in parts]
        fields = self.view.schema.fields
        return ExternalExplanation(
            table=self.view.name,
            source=str(self.table),
            parts=len(parts),
            rows=None if None in rows else sum(n or 0 for n in rows),
            before_merge=None if key_terms is None else text_of(key_terms, fields),
            after_merge=None if rest is None else text_of(rest, fields),
        )

    def _repr_html_(self) -> str:
        columns = columns_table(("Column", "Type"), [(f.name, f.type.sql()) for f in self.fields])
        try:
            plan = plan_list(self.explain().plan())
        except (KeytideError, OSError) as error:
            return notebook(problem(error), columns)
        return notebook(plan, columns)


@dataclass(frozen=True)
class ExternalExplanation:
    """The plan of a scan. `rows` counts all versions, None when the number is unknown."""

    table: str
    source: str
    parts: int
    rows: int | None
    before_merge: str | None
    after_merge: str | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" with {counted(self.rows, 'version')}"
        return (
            f"external table {self.table}: {self.source}\n"
            f"read: {counted(self.parts, 'part')}{rows}\n"
            f"conditions before merging: {self.before_merge or 'none'}\n"
            f"conditions after merging: {self.after_merge or 'none'}"
        )

    def plan(self) -> Plan:
        """The explanation as a tree of steps."""
        title, *rest = str(self).splitlines()
        return Plan(title, children=tuple(map(Plan, rest)))

    def _repr_html_(self) -> str:
        return notebook(plan_list(self.plan()))


# -- explanations ----------------------------------------------------------------------------------


_FILE = scratch("file")
_ROWS = 1 << 18


def why_external(table: PinnedExternal, key: Mapping[str, Any] | Any) -> Why:
    """Every version of a key in the source, in merge order, with its effect.

    Rows without an order all have the number 0. Raises as a scan does.
    """
    schema = table.view.schema
    condition = key_condition(key, schema, table.name)
    key_terms, _ = split_condition(condition, schema.primary_keys)
    merging = SourceMerge(table.versions(key_terms), schema.names, compares_rows=True)
    values = [name for name in schema.names if name not in schema.primary_keys]
    found = [
        frame.with_columns(pl.lit(str(part)).alias(_FILE))
        for part, frame in merging.versions.of_parts(schema.names, _ROWS)
    ]
    types = polars_schema(schema.fields)
    others = {VALUE_KIND: pl.Int8, SEQUENCE_NUMBER: pl.Int64, _FILE: pl.String}
    every = pl.concat([pl.DataFrame(schema={**types, **others}), *found])
    versions = merging.order.sort(every).with_row_index(VERSION, 1)
    versions = versions.with_columns(pl.col(VERSION).cast(pl.Int64))
    engine = merging.by_key.engine
    provenance = provenance_of(versions, merging.order, engine)
    effects = outcomes(versions, provenance, merging.order, engine, values)
    return Why(
        table=table.name,
        key=key_values_of(key, schema, table.name),
        snapshot_id=None,
        merge_engine=table.view.options.merge_engine,
        versions=_as_rows(versions, effects, table),
        row=get_external(table, key),
        taken={n: provenance.taken.get(n, ()) if provenance.row.height else () for n in values},
    )


def _as_rows(versions: pl.DataFrame, effects: list[str], table: PinnedExternal) -> Any:
    """The versions in the format of `Why.versions`. Files have no level and no schema id."""
    schema = versions_schema(table.view.schema.fields)
    kinds = [RowKind(kind).short for kind in versions[VALUE_KIND]]
    system = [
        versions[VERSION], versions[_FILE], pl.Series([None] * versions.height, dtype=pl.Int32),
        pl.Series([None] * versions.height, dtype=pl.Int64), versions[SEQUENCE_NUMBER],
        pl.Series(kinds, dtype=pl.String),
    ]  # fmt: skip
    own = [versions[name] for name in table.view.schema.names]
    columns = [*system, *own, pl.Series(effects, dtype=pl.String)]
    frame = pl.DataFrame([c.alias(n) for c, n in zip(columns, schema.names, strict=True)])
    return to_arrow(frame, schema)
