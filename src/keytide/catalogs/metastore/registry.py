"""The interface of metastores: databases, tables, and the operations on them.

A metastore stores the names, locations and a description of tables. The table itself, with its
schemas and snapshots, is in its folder, as in Apache Paimon. AWS Glue and a Hive Metastore are
implementations of `Registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keytide.catalogs.metastore.description import Description

__all__ = ["RegisteredDatabase", "RegisteredTable", "Registry"]


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
