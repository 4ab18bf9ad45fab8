"""One table of a catalog service, as requests refer to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keytide.catalogs.rest.client import MISSING, Answer, RestClient
from keytide.errors import ConflictError
from keytide.format import paths
from keytide.format.branch import branch_of, branched_name
from keytide.store import Store

__all__ = ["RestTable"]


@dataclass(frozen=True)
class RestTable:
    """A table, by its names and its id, which distinguishes it from a recreated table.

    A branch has the table's name followed by its own. `store` says which one is meant.
    """

    client: RestClient
    database: str
    name: str
    id: str

    def __str__(self) -> str:
        return f"table {self.database}.{self.name}"

    def get(self, store: Store, *rest: str) -> Answer:
        """Read something about the table, which may not exist. Raises as `RestClient.get`."""
        return self.client.get(*self._path(store), *rest)

    def post(self, store: Store, *rest: str, body: Mapping[str, Any]) -> Answer:
        """Change something about the table. Raises as `RestClient.post`."""
        return self.client.post(*self._path(store), *rest, body=body)

    def delete(self, store: Store, *rest: str) -> Answer:
        """Remove something of the table. Raises as `RestClient.post`."""
        return self.client.delete(*self._path(store), *rest)

    def described(self, store: Store) -> Mapping[str, Any]:
        """The catalog's description of the table. Raises `ConflictError` if it was recreated.

        Requests without an id are sent after this, so that they do not affect another table.
        """
        main = self.client.get("databases", self.database, "tables", self.name)
        if not main.is_done or str(main.document.get("id")) != self.id:
            raise self.gone(main)
        if branch_of(store) == paths.MAIN_BRANCH:
            return main.document
        own = self.get(store)
        if not own.is_done:
            raise self.gone(own)
        return own.document

    def gone(self, answer: Answer) -> ConflictError:
        """The error if the table does not exist, or was recreated."""
        if answer.status != MISSING:
            return ConflictError(
                f"{self} of the catalog {self.client.uri} is now another table: the opened one "
                "was dropped or renamed, so nothing was changed; open the new one"
            )
        return ConflictError(
            f"{self} is no longer in the catalog {self.client.uri}: it was renamed or dropped "
            "meanwhile, so nothing was committed; open the table by its new name, and run the "
            "operation again"
        )

    def _path(self, store: Store) -> tuple[str, ...]:
        return ("databases", self.database, "tables", branched_name(self.name, branch_of(store)))
