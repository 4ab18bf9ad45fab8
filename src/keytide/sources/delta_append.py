"""Appends rows to a Delta table, in one commit of `deltalake`.

Before it writes, the library refuses features that it cannot write and rows that violate a
constraint. It handles column mapping and generated columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.process import library
from keytide.errors import ConflictError, DataError, InvalidError, KeytideError, UnsupportedError
from keytide.sources.appending import ConformedRows, Rows, again_after_conflicts, conform
from keytide.sources.delta import delta_columns, delta_errors, open_delta
from keytide.sources.source import Place
from keytide.store import Store, store_of_file

__all__ = ["DeltaAppender", "open_appender"]


def open_appender(place: Place) -> DeltaAppender:
    """The Delta table in a folder. Nothing is read yet."""
    return DeltaAppender(store_of_file(f"{place.location.rstrip('/')}/x", place.near)[0].uncached())


@dataclass(frozen=True)
class DeltaAppender:
    """A Delta table. See `Appender`."""

    store: Store

    @property
    def location(self) -> str:
        """The folder."""
        return self.store.uri

    def append(self, rows: Rows, key: Sequence[str]) -> str:
        """See `Appender`. Returns the version."""
        return again_after_conflicts(lambda: self._appended(rows, key))

    def _appended(self, rows: Rows, key: Sequence[str]) -> str:
        owner = f"Delta table {self.location}"
        with delta_errors(self.store), _append_errors(owner):
            table = open_delta(self.store)
            columns = delta_columns(table.schema().to_json(), owner)
            schema = pa.schema([pa.field(c.name, c.type, c.stored.nullable) for c in columns])
            fit = conform(rows, schema, key, owner)
            _refuse_empty_texts(fit, table.metadata().partition_columns, owner)
            write: Any = library("deltalake", "delta", owner).write_deltalake
            write(table, fit.reader(), mode="append")
            return str(table.version())


def _refuse_empty_texts(rows: ConformedRows, partitions: Sequence[str], owner: str) -> None:
    """Refuse partition values that readers would interpret as NULL."""
    for name in partitions:
        if not pa.types.is_string(rows.schema.field(name).type):
            continue
        for part in rows.parts():
            if pc.any(pc.equal(part.column(name), "")).as_py():
                raise InvalidError(
                    f"{owner} is partitioned by column {name!r}, in which Delta treats the empty "
                    "string as NULL; use NULL, or another string"
                )


@contextmanager
def _append_errors(owner: str) -> Iterator[None]:
    """Distinguish errors caused by the rows, by the table, and by other writers."""
    try:
        yield
    except KeytideError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if re.search("failed validation|invariant|constraint", text, re.IGNORECASE):
            raise InvalidError(
                f"{owner}: rows violate a constraint of the table, and nothing was written: {text}"
            ) from None
        if "Unsupported table features" in text:
            raise UnsupportedError(
                f"{owner}: deltalake cannot write a table with these features, and nothing was "
                f"written: {text}; append with the engine that created the table"
            ) from None
        if type(error).__name__ != "CommitFailedError":
            raise
        if _LOST.search(text):
            raise ConflictError(f"{owner}: another writer committed first: {text}") from None
        raise DataError(
            f"{owner}: it is unknown whether the rows were written: read the table before you "
            f"repeat the write ({text})"
        ) from None


_LOST = re.compile(
    "(metadata|protocol) changed|concurrent|conflict|attempts|already exists", re.IGNORECASE
)
"""The library's messages if it is certain that nothing was committed."""
