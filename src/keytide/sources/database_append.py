"""Appends rows to a SQLite or PostgreSQL table, by one INSERT in its own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from keytide.dml.database_changes import Insertion
from keytide.errors import NotFoundError
from keytide.sources.appending import Rows, conform
from keytide.sources.database import DatabaseSource, open_source
from keytide.sources.source import Place

__all__ = ["DatabaseAppender", "open_appender"]


def open_appender(place: Place) -> DatabaseAppender:
    """A database table, without connecting yet. Raises as `open_source`."""
    return DatabaseAppender(open_source(place))


@dataclass(frozen=True)
class DatabaseAppender:
    """A database table. See `Appender`."""

    source: DatabaseSource

    @property
    def location(self) -> str:
        """The table, and the database without user and password."""
        return self.source.location

    def append(self, rows: Rows, key: Sequence[str]) -> None:
        """See `Appender`. A duplicate unique key raises `InvalidError`.

        There is one attempt, because the database itself has already waited for others.
        """
        database = self.source.database
        with database.session(self.location) as session:
            table = database.find(session, self.source.table)
        if table is None:
            raise NotFoundError(f"{self.location} does not exist")
        schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in table.columns])
        fit = conform(rows, schema, key, str(table))
        insertion = Insertion(database, table, schema.names, None)
        try:
            for batch in fit.reader():
                insertion.stage(batch)
            insertion.insert()
        finally:
            insertion.close()
