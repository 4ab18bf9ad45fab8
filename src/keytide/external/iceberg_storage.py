"""How the files of an Iceberg table are opened, here and where a part of it travels to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from keytide.extras import library
from keytide.lazily import cached_property

__all__ = ["IcebergStorage", "environment_of"]


@dataclass(frozen=True)
class IcebergStorage:
    """What opens files, in whichever process.

    What the environment says of the catalog stays out of pickles: each process asks its own. What
    the lake was given and what the catalog lends for the files of the table travels.
    """

    catalog: str | None
    """The name under which the environment tells of the catalog; None where there is none."""
    location: str
    given: tuple[tuple[str, str], ...] = field(repr=False)

    @staticmethod
    def of(table: Any, catalog: str | None) -> IcebergStorage:
        """That of a table of `pyiceberg`, which is in a catalog or in none."""
        told = environment_of(catalog)
        given = sorted(
            (name, value)
            for name, value in table.io.properties.items()
            # Among them is an object with the catalog's token, which only requests to it need.
            if isinstance(value, str) and told.get(name) != value
        )
        made = IcebergStorage(catalog, table.metadata.location, tuple(given))
        vars(made)["io"] = table.io
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return IcebergStorage, (self.catalog, self.location, self.given)

    @cached_property
    def io(self) -> Any:
        """The library's way to files. Raises `SetupError` without the extra."""
        io = library("pyiceberg.io", "iceberg", f"Iceberg table {self.location}")
        properties = {**environment_of(self.catalog), **dict(self.given)}
        return io.load_file_io(properties, self.location)


def environment_of(catalog: str | None) -> dict[str, Any]:
    """What the environment says of a catalog, if there is one, and of the object store.

    Of the store that is what `pyiceberg` does not look for by itself.
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
