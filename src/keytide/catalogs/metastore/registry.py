"""The registry of a metastore: its interface, and what it says about databases, tables and columns.

A metastore stores the names, locations and a description of tables. The table itself, with its
schemas and snapshots, is in its folder, as in Apache Paimon. AWS Glue and a Hive Metastore are
implementations of `Registry`.

The description of a table has the same values as Paimon's own catalog, by which Paimon and
compatible engines recognize its tables: class names of its Hive connector, and a few parameters.
Column types are Hive's, as in that catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from keytide.base.dataclass import dataclass, field
from keytide.format.schema import TableSchema
from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    VectorType,
)

# -- Hive type names of columns --------------------------------------------------------------------


_CHAR_LENGTH_MAX = 255
_VARCHAR_LENGTH_MAX = 65_535


def hive_type(type_: DataType) -> str:
    """The Hive type name. Hive has no lengths of bytes, and a time of day is a string."""
    match type_:
        case ArrayType() | VectorType():
            return f"array<{hive_type(type_.element)}>"
        case MultisetType():
            return f"map<{hive_type(type_.element)},int>"
        case MapType():
            return f"map<{hive_type(type_.key)},{hive_type(type_.value)}>"
        case RowType():
            members = (f"{each.name}:{hive_type(each.type)}" for each in type_.fields)
            return f"struct<{','.join(members)}>"
        case AtomicType(root="DECIMAL"):
            return f"decimal({type_.precision},{type_.scale})"
        case AtomicType(root="CHAR") if (type_.length or 0) <= _CHAR_LENGTH_MAX:
            return f"char({type_.length or 0})"
        case AtomicType(root="VARCHAR") if (type_.length or 0) <= _VARCHAR_LENGTH_MAX:
            return f"varchar({type_.length or 0})"
        case AtomicType():
            return _PLAIN.get(type_.root, "binary")
    return "binary"


_PLAIN = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "CHAR": "string",
    "VARCHAR": "string",
    "DATE": "date",
    "TIME": "string",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp with local time zone",
    "VARIANT": "struct<value:binary,metadata:binary>",
}


# -- the description of a table --------------------------------------------------------------------


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


# -- the interface of metastores -------------------------------------------------------------------


@dataclass(frozen=True)
class RegisteredDatabase:
    """A database, with the location for its new tables, if set, and its comment."""

    name: str
    location: str | None
    comment: str | None


@dataclass(frozen=True)
class RegisteredTable:
    """A table of any engine."""

    name: str
    kind: str
    """`MANAGED_TABLE`, whose files are deleted with it, `EXTERNAL_TABLE`, or another value."""
    location: str | None
    input_format: str | None
    parameters: Mapping[str, str]


class Registry(Protocol):
    """A metastore. Names are in lower case.

    Can be pickled, and shared between threads. Methods raise `DataError`, which says how to fix it,
    if the metastore does not answer or refuses the request.
    """

    @property
    def uri(self) -> str:
        """The address, for messages."""
        ...

    def databases(self) -> list[str]:
        """The names of databases."""
        ...

    def database(self, name: str) -> RegisteredDatabase | None:
        """A database, None if it does not exist."""
        ...

    def create_database(self, database: RegisteredDatabase) -> bool:
        """Register a database. Atomic. False if the name is taken."""
        ...

    def drop_database(self, name: str) -> bool:
        """Remove a database without tables. False if there are tables."""
        ...

    def tables(self, database: str) -> Sequence[RegisteredTable]:
        """The tables of a database, empty if it does not exist."""
        ...

    def table(self, database: str, name: str) -> RegisteredTable | None:
        """A table, None if it does not exist."""
        ...

    def create_table(self, database: str, name: str, description: Description) -> bool:
        """Register a table. Atomic. False if the name is taken.

        Raises `NotFoundError` if the database does not exist.
        """
        ...

    def describe_table(self, database: str, name: str, description: Description) -> None:
        """Replace the columns and parameters of a table's description.

        Other attributes are kept.
        """
        ...

    def drop_table(self, database: str, name: str) -> None:
        """Remove the registration of a table, if it exists. Its files are kept."""
        ...

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Rename a table. False if the new name is taken."""
        ...
