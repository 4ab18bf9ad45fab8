"""Dropped tables: how the folder of a table goes, and what an interrupted drop leaves.

A drop has one step that decides. Where folders can be renamed, the table's folder gets a name that
nobody reads. In an object store, a mark is written, which counts once the first schema is gone, and
then the first schema is deleted. The other files follow, the mark last. Before the step the table
is whole. After it the table does not exist, no matter which of its files are still there.

A writer that began before the drop may leave files under the name of the table. Those whose names
would be used again are deleted before another table gets the name. The mark ensures that only one
process does this, and never to a table that was just created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keytide.errors import ConflictError, DataError, UnsupportedError
from keytide.format import paths
from keytide.format.delta.log import LOG_DIR
from keytide.format.iceberg.metadata import METADATA_DIR
from keytide.store import Store, created

__all__ = ["clear_leftovers", "holds_leftovers", "holds_table", "remove_table"]

_FIRST = paths.schema_path(0)
_MARK = paths.dropped_path()
# Each round deletes what others have written since the previous round.
_ROUNDS_MAX = 5
# Everything else has unique names, and is an orphan without these.
_FOUND_BY_NAME = frozenset(
    {
        paths.schema_dir(), paths.snapshot_dir(), paths.tag_dir(), paths.consumer_dir(),
        paths.changelog_dir(), paths.branches_dir(), METADATA_DIR, LOG_DIR,
    }
)  # fmt: skip


def holds_table(store: Store) -> bool:
    """Whether the folder that a store is rooted at is a table."""
    if store.exists(_FIRST):
        return True
    # The first schema may have expired in an altered table. A writer that died may have left a
    # temporary file, which is not a table.
    names = store.list_names(paths.schema_dir())
    return _name(_MARK) not in names and any(map(_is_schema, names))


def holds_leftovers(store: Store) -> bool:
    """Whether the folder is no table, but has documents of one."""
    return not holds_table(store) and bool(_documents(store, store.list_names()))


def remove_table(store: Store, name: str, bin_: str) -> None:
    """Remove the table in the folder `name`. `bin_` is a folder that nobody reads."""
    try:
        store.rename_tree(name, paths.join(bin_, paths.new_uuid()))
    except UnsupportedError:
        _remove_files(store.sub(name))
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):  # dropped by another process
            raise
    else:
        # With everything that drops left there which were interrupted.
        store.delete_tree(bin_)


def _remove_files(store: Store) -> None:
    store.put(_MARK, paths.new_uuid().encode())
    store.delete([_FIRST])
    for _ in range(_ROUNDS_MAX):
        found = [info.path for info in store.list() if info.path != _MARK]
        if not found:
            break
        # Processes that know the table look for its latest schema.
        store.delete(sorted(filter(_is_document, found), reverse=True))
        store.delete(found)
    store.delete([_MARK])


def clear_leftovers(store: Store, there: Collection[str]) -> None:
    """Delete the documents of a dropped table. `there` are the names in the folder.

    Nothing is deleted if the folder is a table. Raises `ConflictError` if another process is
    deleting them, or died at it.
    """
    if not _documents(store, there):
        return
    if not created(store, _MARK, paths.new_uuid().encode()):
        raise ConflictError(
            f"{store.uri}: a table of this name is being dropped by another process, or the drop "
            "was interrupted; if it was, drop the table again, and then create it"
        )
    if not holds_table(store):
        files = (info.path for folder in _FOUND_BY_NAME for info in store.list(folder))
        store.delete([path for path in files if path != _MARK])
    store.delete([_MARK])


def _documents(store: Store, there: Iterable[str]) -> list[str]:
    """The folders of a table's documents that are not empty."""
    found = _FOUND_BY_NAME & {*there}
    return [folder for folder in sorted(found) if next(iter(store.list(folder)), None)]


def _is_document(path: str) -> bool:
    return path.partition("/")[0] in _FOUND_BY_NAME


def _is_schema(name: str) -> bool:
    return paths.parse_schema_name(name) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
