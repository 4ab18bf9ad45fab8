"""Which of a table's schemas is in force while a conversion may be running.

A conversion to another kind of table (see `table.upkeep.conversion`) first creates a schema, and
then the snapshot with the rows in that kind. So the schema that the latest snapshot names
determines the kind of the table, not the latest schema. Of the schemas of that kind, the latest one
is in force, so an ALTER takes effect immediately. For a table without a snapshot, the latest schema
is in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.definition.kind import kind_of
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.options import keys

__all__ = ["CONVERTED", "SchemasInForce"]

CONVERTED = (
    f"another writer converted it to another '{keys.UPSERT_MODE}' in the meantime; run the "
    "operation again"
)


@dataclass(frozen=True)
class SchemasInForce:
    """The schema in force for the latest snapshot, and the latest schema.

    `is_settled` is false while a conversion is running or was interrupted: a schema of another kind
    of table was created after the snapshot's schema.
    """

    schema: TableSchema
    newest: TableSchema
    is_settled: bool = True

    @classmethod
    def of(cls, schemas: Sequence[TableSchema]) -> SchemasInForce:
        """Derive the schemas in force from the snapshot's schema and all later schemas, in order.

        For a table without a snapshot, only the latest schema is given.
        """
        kind = kind_of(schemas[0])
        own = [schema for schema in schemas if kind_of(schema) is kind]
        return cls(own[-1], schemas[-1], is_settled=len(own) == len(schemas))

    @property
    def way_out(self) -> str:
        """How to fix a conversion that was not completed."""
        now = self.schema.upsert_mode
        other = "full" if now == NO_UPSERTS else NO_UPSERTS
        return (
            "Wait until the conversion is done; or call Table.convert or CALL sys.convert, with "
            f"'{other}' to finish it or with '{now}' to undo it"
        )
