"""A table of Apache Paimon as metastores describe it.

The words are those of Paimon's own catalog, by which it, and engines that go by it, tell its tables
from others: classes of its connector for Hive, and a few parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.format.schema import TableSchema
from keytide.metastore.hive_types import hive_type

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
    """A column; `type` is a text in Hive's words."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True)
class Description:
    """What a metastore is told of a table."""

    location: str
    columns: tuple[Column, ...]
    comment: str | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: dict(_PARAMETERS))

    @classmethod
    def of(cls, schema: TableSchema, location: str) -> Description:
        """The description of a table that lies somewhere.

        Partitions are not told apart: that is done by the files of the table alone.
        """
        columns = (
            Column(each.name, hive_type(each.type), each.description) for each in schema.fields
        )
        said = {} if schema.comment is None else {"comment": schema.comment}
        return cls(location, tuple(columns), schema.comment, _PARAMETERS | said)
