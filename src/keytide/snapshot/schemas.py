"""The schemas of a table that stored files refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from keytide.errors import DataError
from keytide.format import paths
from keytide.format.schema import TableSchema

__all__ = ["Schemas"]


class Schemas(dict[int, TableSchema]):
    """Schemas by id. A missing id raises `DataError`."""

    def __init__(self, table: str, found: Mapping[int, TableSchema]) -> None:
        super().__init__(found)
        self.table = table

    def __reduce__(self) -> tuple[type[Schemas], tuple[str, dict[int, TableSchema]]]:
        return Schemas, (self.table, dict(self))

    def __missing__(self, schema_id: int) -> NoReturn:
        raise DataError(
            f"table {self.table}: a data file was written with schema {schema_id}, but the "
            f"latest known schema is {max(self, default=-1)}: {paths.schema_path(schema_id)} or "
            "the manifest of the file is damaged. Call verify() to find it, and restore it from "
            "a backup"
        )
