"""Files of a statement that nobody reported: their tasks were killed, or failed with others.

They are found by the name of the statement, which is part of every file name, by listing the table.
So nothing has to be stored about them while all goes well.
"""

from __future__ import annotations

import time
from contextlib import suppress

from keytide.errors import DataError
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.snapshot.statement import Statement

__all__ = ["has_committed", "remove_strays"]

# Spark lets a killed task run on for two seconds before it ends the task's process
# ('spark.python.task.killTimeout'), so it can still finish files.
_QUIET_S = 3.0
_LISTINGS = 4


def remove_strays(view: TableView) -> None:
    """Delete the files of a view's statement.

    Does nothing if only this process worked for the statement. Lists the table until no new file
    has appeared for three seconds, but for at most nine seconds. Files that appear later are
    orphans. A failure of the store ends it. REQUIRES: no snapshot references one of them, and none
    will.
    """
    statement = view.statement
    if statement is None or not statement.is_away:
        return
    with suppress(DataError):
        for listing in range(_LISTINGS):
            time.sleep(_QUIET_S if listing else 0)
            found = [info.path for info in view.store.list() if statement.has_named(info.path)]
            if listing and not found:
                return
            view.store.delete(found)


def has_committed(metadata: TableMetadata, statement: Statement, after_id: int) -> bool:
    """Whether one of the snapshots after an id added a file of a statement.

    Raises `DataError` if the store fails, and `NotFoundError` if a snapshot has expired.
    """
    latest_id = metadata.latest_snapshot_id() or 0
    added = (
        metadata.delta_manifests(metadata.snapshot(n)) for n in range(after_id + 1, latest_id + 1)
    )
    return any(
        statement.has_named(entry.file.file_name)
        for manifests in added
        for entry in metadata.entries(manifests)
    )
