"""Which of a table's schemas is in force, where a conversion may be under way.

A conversion to another kind of table (see `table.upkeep.conversion`) makes a schema, and then the
snapshot that has the rows in that kind. So what a table is says the schema that its newest snapshot
names, and not the newest schema; and of the schemas of that kind the newest one is in force, for
an alteration shows at once. A table without a snapshot is what its newest schema says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.options import keys
from keytide.table.definition.kind import kind_of

__all__ = ["CONVERTED", "SchemasInForce"]

CONVERTED = (
    f"another writer converted it to another '{keys.UPSERT_MODE}', by which this work was not "
    f"made; redo it"
)


@dataclass(frozen=True)
class SchemasInForce:
    """The schema by which the newest snapshot is read and written, and the newest one there is.

    `is_settled` is false while a conversion is under way, or was cut short: since the schema of the
    snapshot there came one of another kind of table.
    """

    schema: TableSchema
    newest: TableSchema
    is_settled: bool = True

    @classmethod
    def of(cls, schemas: Sequence[TableSchema]) -> SchemasInForce:
        """What follows from the schema of the newest snapshot and all that came later, in order.

        Of a table without a snapshot the newest schema is given alone.
        """
        kind = kind_of(schemas[0])
        own = [schema for schema in schemas if kind_of(schema) is kind]
        return cls(own[-1], schemas[-1], is_settled=len(own) == len(schemas))

    @property
    def way_out(self) -> str:
        """What to do where they are not settled."""
        now = self.schema.upsert_mode
        other = "full" if now == NO_UPSERTS else NO_UPSERTS
        return (
            f"Wait until the conversion is done; or call Table.convert or CALL sys.convert, with "
            f"'{other}' to end it or with '{now}' to take it back"
        )
