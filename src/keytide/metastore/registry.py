"""What a metastore keeps of databases and tables, and what may be asked of it.

A metastore knows names, places and a description of each table. What the table really is, its
schemas and snapshots among it, lies in its folder, as Apache Paimon has it. AWS Glue is one
implementation of `Registry`, a Hive Metastore another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keytide.metastore.description import Description

__all__ = ["RegisteredDatabase", "RegisteredTable", "Registry"]


@dataclass(frozen=True)
class RegisteredDatabase:
    """A database: where its new tables are to lie, if it says so, and what is said of it."""

    name: str
    location: str | None
    comment: str | None


@dataclass(frozen=True)
class RegisteredTable:
    """A table, of whatever engine."""

    name: str
    kind: str
    """`MANAGED_TABLE`, whose files go with it, `EXTERNAL_TABLE`, or another word."""
    location: str | None
    input_format: str | None
    parameters: Mapping[str, str]


class Registry(Protocol):
    """A metastore. Names are in lower case.

    Pickles, and may be shared between threads. Methods raise `DataError`, which names what to do,
    where the metastore does not answer or refuses.
    """

    @property
    def uri(self) -> str:
        """Its address, for messages."""
        ...

    def databases(self) -> list[str]:
        """The names of databases."""
        ...

    def database(self, name: str) -> RegisteredDatabase | None:
        """A database; None where there is none."""
        ...

    def create_database(self, database: RegisteredDatabase) -> bool:
        """Register a database: atomic; False where there is one of that name."""
        ...

    def drop_database(self, name: str) -> bool:
        """Forget a database without tables; False where there are some."""
        ...

    def tables(self, database: str) -> Sequence[RegisteredTable]:
        """The tables of a database; none where there is no such database."""
        ...

    def table(self, database: str, name: str) -> RegisteredTable | None:
        """A table; None where there is none."""
        ...

    def create_table(self, database: str, name: str, description: Description) -> bool:
        """Register a table: atomic; False where there is one of that name.

        Raises `NotFoundError` where there is no such database.
        """
        ...

    def describe_table(self, database: str, name: str, description: Description) -> None:
        """Have the columns and parameters of a table be others; what else is said of it stays."""
        ...

    def drop_table(self, database: str, name: str) -> None:
        """Forget a table, which may be gone. Its files stay."""
        ...

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Give a table another name; False where there is one of that name."""
        ...
