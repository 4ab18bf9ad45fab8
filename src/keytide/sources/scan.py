"""Scans of external tables: some columns of the rows of one version that match a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.plural import counted
from keytide.base.process import refuse_forked_child
from keytide.dml.attached import PagesScan
from keytide.dml.spi import ColumnHandle, ConnectorSession
from keytide.errors import KeytideError
from keytide.format.arrow import in_python, to_arrow
from keytide.predicate.condition import Condition, predicate_of
from keytide.predicate.predicate import Predicate
from keytide.predicate.text import text_of
from keytide.read.row_source import RowSource, check_limit
from keytide.read.scans import in_order_of_keys, key_condition, keys_condition, selected_columns
from keytide.show.columns_table import columns_table
from keytide.show.notebook import notebook
from keytide.show.parts import problem
from keytide.show.plan_list import plan_list
from keytide.show.plan_tree import Plan
from keytide.snapshot.view import TableView
from keytide.sources.connector import EXTERNAL_TABLES, ExternalHandle
from keytide.sources.merging import Merging, split_condition
from keytide.sources.pinned import PinnedExternal
from keytide.types import Field

__all__ = [
    "ExternalExplanation",
    "ExternalScan",
    "get_external",
    "get_many_external",
    "scan_external",
]


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
    return in_order_of_keys(scan, wanted)


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

    def __repr__(self) -> str:
        told = [self.view.name, f"version {self.version}", f"columns {', '.join(self.columns)}"]
        if self.predicate is not None:
            told.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            told.append(f"limit {self.limit}")
        return f"ExternalScan({'; '.join(told)})"

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

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Always empty, because external tables have no snapshots in the lake."""
        return ()

    def tasks(self) -> list[MergeTask]:
        """The scan as a list of one picklable task.

        Raises what reading the source's metadata does.
        """
        refuse_forked_child()
        about_key, rest = split_condition(self.predicate, self.view.schema.primary_keys)
        return [MergeTask(Merging(self.table.versions(about_key), self.columns, rest))]

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
        about_key, rest = split_condition(self.predicate, self.view.schema.primary_keys)
        parts = self.table.source.parts(about_key)
        rows = [part.rows for part in parts]
        fields = self.view.schema.fields
        return ExternalExplanation(
            table=self.view.name,
            source=str(self.table),
            parts=len(parts),
            rows=None if None in rows else sum(n or 0 for n in rows),
            before_merge=None if about_key is None else text_of(about_key, fields),
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
class MergeTask:
    """Reads and merges. Can be pickled."""

    merging: Merging

    @property
    def view(self) -> TableView:
        """See `FramesTask`."""
        return self.merging.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """See `FramesTask`."""
        return self.merging.frames(memory_bytes)


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
