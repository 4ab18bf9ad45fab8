"""Dead letters: the messages of a feed that cannot be applied, and the table that keeps them.

Those of a topic feed without Spark are keyed by their position in the topic.
"""

from __future__ import annotations

import pyarrow as pa

from keytide.catalogs.catalog import Catalog, NewTable
from keytide.catalogs.local_writes import append
from keytide.errors import InvalidError, NotFoundError
from keytide.snapshot.stored_table import StoredTable
from keytide.types import BYTES, STRING, AtomicType, Field

TOPIC_LETTER_COLUMNS = (
    Field(-1, "topic", STRING),
    Field(-1, "topic_partition", AtomicType("INT")),
    Field(-1, "topic_offset", AtomicType("BIGINT")),
    Field(-1, "reason", STRING),
    Field(-1, "raw_key", BYTES),
    Field(-1, "raw", BYTES),
)
"""The columns of dead letters from topics. The key is the message's position in its topic."""


_KEY = ["topic", "topic_partition", "topic_offset"]


class TopicDeadLetters:
    """The dead letters of one table from topics. Each position is stored once."""

    def __init__(self, catalog: Catalog, name: str, subject: str) -> None:
        """The dead letters of the table `subject`. The table `name` is created on the first one.

        Raises `InvalidError` if the table exists and has the wrong definition.
        """
        self._catalog = catalog
        self._name = name
        self._subject = subject
        try:
            check_columns(catalog.table(name), TOPIC_LETTER_COLUMNS)
        except NotFoundError:
            return

    def keep(self, letters: pa.Table) -> None:
        """Store messages with the columns of `TOPIC_LETTER_COLUMNS`. Idempotent."""
        if letters.num_rows:
            append(self.table(), letters)

    def table(self) -> StoredTable:
        """The table, which is created if it does not exist."""
        try:
            return self._catalog.table(self._name)
        except NotFoundError:
            comment = f"messages that could not be applied to {self._subject}"
            wanted = NewTable(TOPIC_LETTER_COLUMNS, _KEY, comment=comment)
            return self._catalog.create_table(self._name, wanted, exists_ok=True)


def check_columns(table: StoredTable, columns: tuple[Field, ...]) -> None:
    """Raises `InvalidError` unless the table has exactly these columns."""
    found = {f.name: f.type.with_nullable(True) for f in table.schema.fields}
    wanted = {f.name: f.type for f in columns}
    if found != wanted:
        raise InvalidError(
            f"table {table.name} cannot store dead letters: it has the columns "
            f"{', '.join((f'{n} {t.sql()}' for n, t in found.items()))}, expected "
            f"{', '.join((f'{n} {t.sql()}' for n, t in wanted.items()))}; give a new name, and "
            "the table is created"
        )
