"""A table config with its schema, and properties derived from both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot import exp

from keytide.base.process import cached_property
from keytide.pinot.config import Column, Schema, TableConfig, Upsert
from keytide.pinot.functions import parsed

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """A table config and schema to create a table from."""

    table: TableConfig
    schema: Schema

    @property
    def upsert(self) -> Upsert:
        """The upsert config. Empty if it is missing."""
        return self.table.upsert or Upsert(mode="NONE")

    @property
    def is_on(self) -> bool:
        """Whether the table has upserts."""
        return self.upsert.mode != "NONE"

    @property
    def is_partial(self) -> bool:
        """Whether rows are merged column by column (partial upserts)."""
        return self.upsert.mode == "PARTIAL"

    @property
    def is_offline(self) -> bool:
        """Whether rows are loaded from files, and not from a stream."""
        return self.table.type == "OFFLINE"

    @property
    def comparison(self) -> tuple[str, ...]:
        """The comparison columns, by default the time column."""
        return self.upsert.comparison or tuple(filter(None, (self.table.time_column,)))

    @property
    def has_nulls(self) -> bool:
        """Whether NULLs are distinguished from their default values."""
        return self.table.has_nulls or self.schema.has_nulls

    @property
    def ttls(self) -> dict[str, float]:
        """The configured TTLs, by member."""
        named = {"metadataTTL": self.upsert.metadata_ttl, "deletedKeysTTL": self.upsert.deleted_ttl}
        return {name: value for name, value in named.items() if value > 0}

    def column(self, name: str) -> Column | None:
        """The column of that name, if there is one."""
        return self.schema.by_name.get(name)

    def unknown(self, names: Iterable[str | None]) -> list[str]:
        """The names that no column has."""
        return [name for name in names if name is not None and self.column(name) is None]

    @cached_property
    def functions(self) -> tuple[tuple[str, str, exp.Expr | None], ...]:
        """Columns computed after a merge: name, text, and the tree if it parses."""
        return tuple((t.column, t.function, parsed(t.function)) for t in self.upsert.transforms)
