"""ALTER TABLE actions that create and drop tags and branches, as in Iceberg and Paimon on Spark."""

from __future__ import annotations

from keytide.errors import AlreadyExistsError, NotFoundError
from keytide.maintenance.history import branches, tags
from keytide.maintenance.upkeep import branches as ended_branches
from keytide.snapshot.stored import StoredTable
from keytide.sql.history import place_of_version
from keytide.sql.statements import CreateVersionName, DropVersionName

__all__ = ["create_version_name", "drop_version_name"]


def create_version_name(table: StoredTable, wanted: CreateVersionName) -> None:
    """Create a tag or a branch from a snapshot, by default the latest.

    A branch starts with the rows of that snapshot. Raises `NotFoundError` for a snapshot or tag
    that does not exist, `AlreadyExistsError` for a name that is taken (unless the statement allows
    it), and what else `create_tag`, `replace_tag` and `create_branch` raise.
    """
    place = None if wanted.version is None else place_of_version(table.metadata, wanted.version)
    try:
        if wanted.kind == "BRANCH":
            begins = {"tag": place} if isinstance(place, str) else {"snapshot_id": place}
            branches.create_branch(table, wanted.name, **begins)
            return
        snapshot_id = table.metadata.tag(place).id if isinstance(place, str) else place
        is_there = wanted.taken == "replace" and table.metadata.has_tag(wanted.name)
        make = tags.replace_tag if is_there or wanted.taken == "need" else tags.create_tag
        make(table, wanted.name, snapshot_id, wanted.time_retained)
    except AlreadyExistsError:
        if wanted.taken != "keep":
            raise


def drop_version_name(table: StoredTable, wanted: DropVersionName) -> None:
    """Drop a tag or a branch. Raises `NotFoundError` unless it may be missing."""
    drop = tags.delete_tag if wanted.kind == "TAG" else ended_branches.delete_branch
    try:
        drop(table, wanted.name)
    except NotFoundError:
        if not wanted.missing_ok:
            raise
