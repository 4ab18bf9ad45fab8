"""Reads the log of a Delta table in a store, and keeps it short."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from keytide.errors import DataError
from keytide.format.delta.checkpoint import decode_checkpoint, encode_checkpoint
from keytide.format.delta.names import (
    LAST_CHECKPOINT,
    LOG_DIR,
    checkpoint_path,
    commit_path,
    parse_checkpoint_name,
    parse_commit_name,
    parse_version,
)
from keytide.format.delta.state import NOTHING, Action, DeltaState, decode_actions
from keytide.format.delta.vector import VECTOR_DIR, vector_file_name
from keytide.snapshot.retries import again
from keytide.store import Store

__all__ = [
    "CHECKPOINT_INTERVAL",
    "drop_old",
    "newest_state",
    "read_on",
    "vector_files",
    "vector_files_of_all",
    "write_checkpoint",
]

CHECKPOINT_INTERVAL = 20
"""The number of versions between two checkpoints. A reader reads at most this many small files."""

# How many numbers after the latest known version are requested at a time.
_PROBES = 4


def newest_state(store: Store) -> DeltaState | None:
    """The latest version, found by a listing of the log. None if there is no log.

    Raises `DataError` for a log with gaps, and for a damaged file.
    """
    return again(lambda: _listed(store))


def _listed(store: Store) -> DeltaState | None:
    names = store.list_names(LOG_DIR)
    commits = {v for name in names if (v := parse_commit_name(name)) is not None}
    checkpoints = {v for name in names if (v := parse_checkpoint_name(name)) is not None}
    if not commits and not checkpoints:
        return None
    newest = max(commits | checkpoints)
    first = max(checkpoints, default=-1) + 1
    if not commits.issuperset(range(first, newest + 1)):
        raise DataError(
            f"{store.uri_of(LOG_DIR)}: commits between {first} and {newest} are missing; delete "
            "the folder, and the next publication recreates it"
        )
    files = [checkpoint_path(first - 1)] * (first > 0)
    data = store.read_all([*files, *(commit_path(v) for v in range(first, newest + 1))])
    state = NOTHING
    if first > 0:
        state = decode_checkpoint(data.pop(0), first - 1, store.uri_of(files[0]))
    for version, each in enumerate(data, start=first):
        state = state.after(version, decode_actions(each, store.uri_of(commit_path(version))))
    return state


def read_on(store: Store, known: DeltaState) -> DeltaState | None:
    """The latest version, found from a known one. None if it belongs to another table."""
    state = known
    while True:
        versions = range(state.version + 1, state.version + 1 + _PROBES)
        for version, data in zip(
            versions, store.read_present([commit_path(v) for v in versions]), strict=True
        ):
            if data is None:
                return state
            actions = decode_actions(data, store.uri_of(commit_path(version)))
            if table_told(actions) != known.table_id:
                return None
            state = state.after(version, actions)


def table_told(actions: Sequence[Action]) -> str | None:
    """The table that a commit of Keytide names."""
    told = [each["commitInfo"].get("tableId") for each in actions if "commitInfo" in each]
    return None if not told else told[0]


# -- keeping it short ------------------------------------------------------------------------------


def write_checkpoint(store: Store, state: DeltaState) -> None:
    """Write a checkpoint with all versions up to this one, and the file that tells readers where it
    is.
    """
    data, size = encode_checkpoint(state)
    store.put(checkpoint_path(state.version), data)
    hint = {"version": state.version, "size": size, "sizeInBytes": len(data)}
    store.hint(LAST_CHECKPOINT, json.dumps(hint).encode())


def drop_old(store: Store, state: DeltaState, before_ms: int) -> None:
    """Delete what no reader needs that began after a time.

    Deletes the part of the log before the newest checkpoint of that age. Also deletes files with
    vectors of that age, if no file of this version, and no file removed since then, references
    them.
    """
    listed = [(info, parse_version(info.path.rpartition("/")[2])) for info in store.list(LOG_DIR)]
    old = [version for info, version in listed if version is not None
           and info.modified_ms < before_ms and info.path == checkpoint_path(version)]  # fmt: skip
    kept_from = max(old, default=0)
    gone = [info.path for info, version in listed if version is not None and version < kept_from]
    named = {f"{VECTOR_DIR}/{name}" for name in vector_files(state)}
    gone += [info.path for info in store.list(VECTOR_DIR)
             if info.modified_ms < before_ms and info.path not in named]  # fmt: skip
    store.discard(gone)


def vector_files(state: DeltaState) -> Iterator[str]:
    """The names of files with vectors that the files of a version reference, or did recently."""
    return _files_of_vectors((*state.files.values(), *state.removed))


def vector_files_of_all(store: Store) -> frozenset[str]:
    """The names of files with vectors that any existing version references.

    Raises `DataError` for a damaged part of the log.
    """
    names = store.list_names(LOG_DIR)
    logged = [n for n in names if parse_commit_name(n) is not None]
    checkpoints = [n for n in names if parse_checkpoint_name(n) is not None]
    paths = [f"{LOG_DIR}/{name}" for name in (*logged, *checkpoints)]
    found: set[str] = set()
    for path, data in zip(paths, store.read_present(paths), strict=True):
        if data is None:
            continue
        if path.endswith(".json"):
            actions = decode_actions(data, store.uri_of(path))
            found |= {*_files_of_vectors(each.get("add") or {} for each in actions)}
        else:
            found |= {*vector_files(decode_checkpoint(data, 0, store.uri_of(path)))}
    return frozenset(found)


def _files_of_vectors(actions: Iterable[Action]) -> Iterator[str]:
    for action in actions:
        vector = action.get("deletionVector")
        name = None if vector is None else vector_file_name(vector)
        if name is not None:
            yield name
