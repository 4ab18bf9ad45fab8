"""Appends rows to an Iceberg table in a catalog, in one commit of `pyiceberg`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keytide.base.process import library
from keytide.errors import SetupError, UnsupportedError
from keytide.sources.appending import Rows, again_after_conflicts, conform
from keytide.sources.iceberg_catalog import IcebergPlace, iceberg_place
from keytide.sources.source import Place

__all__ = ["IcebergAppender", "open_appender"]

_VERSION_MAX = 2


def open_appender(place: Place) -> IcebergAppender:
    """The Iceberg table with a name in a catalog. Nothing is read yet.

    Raises `UnsupportedError` for a table without a catalog, because nothing coordinates its
    writers.
    """
    found = iceberg_place(place)
    if not found.catalog:
        raise UnsupportedError(
            f"{found.shown}: rows can be appended only through a catalog, which coordinates "
            "writers; give the table's name in the catalog, and catalog.uri"
        )
    return IcebergAppender(found)


@dataclass(frozen=True)
class IcebergAppender:
    """An Iceberg table. See `Appender`."""

    place: IcebergPlace

    @property
    def location(self) -> str:
        """The name in the catalog."""
        return self.place.name

    def append(self, rows: Rows, key: Sequence[str]) -> str:
        """See `Appender`. Returns the snapshot id."""
        return again_after_conflicts(lambda: self._appended(rows, key))

    def _appended(self, rows: Rows, key: Sequence[str]) -> str:
        shown = self.place.shown
        with self.place.errors():
            table = self.place.open()
            version = table.metadata.format_version
            if version > _VERSION_MAX:
                raise UnsupportedError(
                    f"{shown} has format version {version}, but pyiceberg supports writing up to "
                    f"{_VERSION_MAX}; append with the engine that created the table"
                )
            _check_transforms(table, shown)
            arrow = library("pyiceberg.io.pyarrow", "iceberg", shown)
            schema = arrow.schema_to_pyarrow(table.schema(), include_field_ids=False)
            fit = conform(rows, schema, key, shown)
            # pyiceberg divides rows among partitions only if it has all of them in memory.
            table.append(fit.table() if table.spec().fields else fit.reader())
            return str(table.current_snapshot().snapshot_id)


_WITHOUT_CORE = ("IdentityTransform", "VoidTransform")


def _check_transforms(table: Any, shown: str) -> None:
    """Refuse partition transforms for which `pyiceberg` needs a library that may be missing."""
    names = {type(member.transform).__name__ for member in table.spec().fields}
    if names <= set(_WITHOUT_CORE):
        return
    try:
        library("pyiceberg_core", "iceberg", shown)
    except SetupError as error:
        raise SetupError(
            f"{shown} is partitioned by {', '.join(sorted(names - set(_WITHOUT_CORE)))}, which "
            "requires pyiceberg-core: pip install pyiceberg-core"
        ) from error
