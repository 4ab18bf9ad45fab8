"""Commits of tables in a metastore, which are file system commits."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.base.callers import warn_caller
from keytide.catalogs.metastore.description import Description
from keytide.catalogs.metastore.registry import Registry
from keytide.errors import KeytideError
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.schema import TableSchema
from keytide.snapshot.commits import FolderCommits
from keytide.store import Store

__all__ = ["RegisteredCommits"]


@dataclass(frozen=True)
class RegisteredCommits(FolderCommits):
    """Creating `snapshot/snapshot-N` is the commit. New columns are reported to the metastore."""

    registry: Registry
    database: str
    table: str

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`.

        Warns if the metastore cannot be updated, because the table is already altered.
        """
        if branch_of(store) != paths.MAIN_BRANCH:
            return
        try:
            description = Description.of(schema, store.uri)
            self.registry.describe_table(self.database, self.table, description)
        except KeytideError as error:
            warn_caller(
                f"table {self.database}.{self.table}: it is altered, but {self.registry.uri} "
                f"still lists its old columns ({error}); engines that use the metastore see them "
                "until the next change"
            )
