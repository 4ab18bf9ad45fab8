"""Access to the files of an Iceberg table, in this process and in others."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from keytide.base.extras import library
from keytide.base.lazily import cached_property

__all__ = ["IcebergStorage", "environment_of"]


@dataclass(frozen=True)
class IcebergStorage:
    """Opens files, in any process.

    Environment settings of the catalog are not pickled, because each process has its own. The
    lake's options and the catalog's temporary credentials for the table's files are pickled.
    """

    catalog: str | None
    """The name of the catalog in the environment, None if there is no catalog."""
    location: str
    given: tuple[tuple[str, str], ...] = field(repr=False)

    @staticmethod
    def of(table: Any, catalog: str | None) -> IcebergStorage:
        """The storage of a `pyiceberg` table, with or without a catalog."""
        told = environment_of(catalog)
        given = sorted(
            (name, value)
            for name, value in table.io.properties.items()
            # This excludes an object with the catalog's token, which only catalog requests need.
            if isinstance(value, str) and told.get(name) != value
        )
        made = IcebergStorage(catalog, table.metadata.location, tuple(given))
        vars(made)["io"] = table.io
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return IcebergStorage, (self.catalog, self.location, self.given)

    @cached_property
    def io(self) -> Any:
        """The library's file access object. Raises `SetupError` without the extra."""
        io = library("pyiceberg.io", "iceberg", f"Iceberg table {self.location}")
        properties = {**environment_of(self.catalog), **dict(self.given)}
        return io.load_file_io(properties, self.location)


def environment_of(catalog: str | None) -> dict[str, Any]:
    """The environment's settings for a catalog, if there is one, and for the object store.

    For the store, these are the settings that `pyiceberg` does not read itself.
    """
    of_store = {
        name: os.environ[found]
        for name, variables in _VARIABLES.items()
        if (found := next(filter(os.environ.get, variables), None)) is not None
    }
    if catalog is None:
        return of_store
    config = library("pyiceberg.utils.config", "iceberg", f"catalog {catalog}")
    return {**of_store, **(config.Config().get_catalog_config(catalog) or {})}


_VARIABLES = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
