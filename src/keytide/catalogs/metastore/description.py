"""The description of an Apache Paimon table in a metastore.

It uses the same values as Paimon's own catalog, by which Paimon and compatible engines recognize
its tables: class names of its Hive connector, and a few parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.catalogs.metastore.hive_types import hive_type
from keytide.format.schema import TableSchema

__all__ = ["INPUT_FORMAT", "OUTPUT_FORMAT", "SERDE", "Column", "Description"]

INPUT_FORMAT = "org.apache.paimon.hive.mapred.PaimonInputFormat"
OUTPUT_FORMAT = "org.apache.paimon.hive.mapred.PaimonOutputFormat"
SERDE = "org.apache.paimon.hive.PaimonSerDe"
_PARAMETERS = {
    "table_type": "PAIMON",
    "storage_handler": "org.apache.paimon.hive.PaimonStorageHandler",
}


@dataclass(frozen=True)
class Column:
    """A column. `type` is a Hive type name."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True)
class Description:
    """The description of a table for a metastore."""

    location: str
    columns: tuple[Column, ...]
    comment: str | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: dict(_PARAMETERS))

    @classmethod
    def of(cls, schema: TableSchema, location: str) -> Description:
        """The description of a table at a location.

        It does not list partitions, which are defined by the table's files alone.
        """
        columns = (
            Column(each.name, hive_type(each.type), each.description) for each in schema.fields
        )
        said = {} if schema.comment is None else {"comment": schema.comment}
        return cls(location, tuple(columns), schema.comment, _PARAMETERS | said)
