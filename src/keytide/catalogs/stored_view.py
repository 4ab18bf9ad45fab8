"""A stored view of a lake: a named query.

Apache Paimon's filesystem catalog does not support views. They are stored where its readers do not
look for tables: `database.db/.keytide/views/name.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from keytide.errors import UnsupportedError
from keytide.format.json_document import (
    INTEGER,
    TEXT,
    TEXTS,
    member,
    optional_member,
    read_document,
)

__all__ = ["StoredView"]

_VERSION = 1


@dataclass(frozen=True)
class StoredView:
    """A view. `name` includes the database.

    Names in the `query` without a database are in `database`. `columns` rename the columns of the
    query. Empty if they keep their names.
    """

    name: str
    query: str
    database: str
    columns: tuple[str, ...] = ()
    comment: str | None = None

    def to_json(self) -> bytes:
        """The document."""
        document = {
            "version": _VERSION,
            "query": self.query,
            "database": self.database,
            "columns": list(self.columns),
            "comment": self.comment,
        }
        return json.dumps(document, indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, name: str, data: bytes, path: str) -> StoredView:
        """The view in a document at a path.

        Raises `DataError` for a damaged document, and `UnsupportedError` for one of a later
        release.
        """
        document = read_document(data, path)
        version = member(document, "version", INTEGER, path)
        if version > _VERSION:
            raise UnsupportedError(
                f"view {name}: {path} has version {version}, but this release supports "
                f"{_VERSION}; install a newer release"
            )
        return cls(
            name,
            member(document, "query", TEXT, path),
            member(document, "database", TEXT, path),
            tuple(optional_member(document, "columns", TEXTS, path, default=[])),
            optional_member(document, "comment", TEXT, path),
        )
