"""A view of a lake: a query by name, as it is stored.

Apache Paimon's catalog of folders knows no views. They lie where its readers look for no table:
`database.db/.keytide/views/name.json`.
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
    """A view; `name` is that of its database too.

    Names in the `query` without a database are in `database`. `columns` are the names that those of
    the query get, none where they keep their own.
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
        """The view of a document that lies at a path.

        Raises `DataError` for a torn one, `UnsupportedError` for one of a later release.
        """
        document = read_document(data, path)
        version = member(document, "version", INTEGER, path)
        if version > _VERSION:
            raise UnsupportedError(
                f"view {name}: {path} has version {version}, and this release knows {_VERSION}; "
                f"install a newer one"
            )
        return cls(
            name,
            member(document, "query", TEXT, path),
            member(document, "database", TEXT, path),
            tuple(optional_member(document, "columns", TEXTS, path, default=[])),
            optional_member(document, "comment", TEXT, path),
        )
