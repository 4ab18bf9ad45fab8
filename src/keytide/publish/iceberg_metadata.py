"""Reads the metadata of an Iceberg table in a store, and deletes what is old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from keytide.errors import DataError
from keytide.format.iceberg.manifest import DELETES, Manifest, decode_entries, decode_list
from keytide.format.iceberg.metadata import (
    METADATA_DIR,
    VERSION_HINT,
    IcebergState,
    decode_metadata,
    dropped_names,
    metadata_path,
    parse_metadata_name,
)
from keytide.snapshot.retries import again
from keytide.store import Store

__all__ = ["drop_old", "files_of", "files_of_all", "newest_state", "read_on", "tell_newest"]

_PROBES = 4


def newest_state(store: Store) -> IcebergState | None:
    """The latest version, found by a listing of the metadata. None if there is none.

    Raises `DataError` for a file that is damaged or missing.
    """
    return again(lambda: _listed(store))


def _listed(store: Store) -> IcebergState | None:
    names = store.list_names(METADATA_DIR)
    versions = [v for name in names if (v := parse_metadata_name(name)) is not None]
    if not versions:
        return None
    newest = max(versions)
    return _read(store, newest, store.read(metadata_path(newest)), ())


def read_on(store: Store, known: IcebergState) -> IcebergState | None:
    """The latest version, found from a known one. None if it belongs to another table."""
    number, data = known.version, None
    while True:
        versions = range(number + 1, number + 1 + _PROBES)
        found = store.read_present([metadata_path(v) for v in versions])
        there = [each for each in found if each is not None]
        if there:
            number, data = number + len(there), there[-1]
        if len(there) < _PROBES:
            break
    if data is None:
        return known
    state = _read(store, number, data, known.manifests)
    return state if state.table_id == known.table_id else None


def _read(store: Store, version: int, data: bytes, known: Iterable[Manifest]) -> IcebergState:
    """A version with its manifests. Known manifests are not read again."""
    uri = store.uri_of(metadata_path(version))
    state, _ = decode_metadata(data, version, uri)
    path = _own_path(store, state, state.manifest_list)
    listed = decode_list(store.read(path), state.manifest_list)
    there = {manifest.path: manifest for manifest in known}
    calls = [partial(_manifest, store, state, told, there) for told in listed]
    return replace(state, manifests=tuple(store.together(calls)))


def _manifest(
    store: Store, state: IcebergState, told: Mapping[str, Any], known: Mapping[str, Manifest]
) -> Manifest:
    path = str(told["manifest_path"])
    if path in known:
        return known[path]
    number, first_row_id = int(told["sequence_number"]), told.get("first_row_id")
    data = store.read(_own_path(store, state, path))
    return Manifest(
        path,
        int(told["manifest_length"]),
        int(told["content"]),
        number,
        int(told["added_snapshot_id"]),
        decode_entries(data, number, first_row_id, path),
        first_row_id,
    )


def _own_path(store: Store, state: IcebergState, uri: str) -> str:
    """The path of a metadata file in the store.

    The table may have been moved since the path was written.
    """
    name = uri.rpartition("/")[2]
    if uri != f"{state.location}/{METADATA_DIR}/{name}":
        raise DataError(
            f"{store.uri_of(METADATA_DIR)}: {uri} is outside this folder, so Keytide did not "
            "write it; delete the folder, and the next publication recreates it"
        )
    return f"{METADATA_DIR}/{name}"


def tell_newest(store: Store, state: IcebergState) -> None:
    """Write the hint for readers: this version, or a newer one that was created in the meantime."""
    store.hint(VERSION_HINT, str(state.version).encode())
    if store.exists(metadata_path(state.version + 1)):
        newest = newest_state(store)
        if newest is not None:
            store.hint(VERSION_HINT, str(newest.version).encode())


def drop_old(store: Store, before_ms: int) -> None:
    """Delete what no reader needs that began after a time: versions, and what they dropped."""
    made = {
        version: info.modified_ms
        for info in store.list(METADATA_DIR)
        if (version := parse_metadata_name(info.path.rpartition("/")[2])) is not None
    }
    old = sorted(version for version, modified_ms in made.items() if modified_ms < before_ms)
    if not old:
        return
    # The last of them was the latest version at that time.
    texts = store.read_present([metadata_path(version) for version in old])
    gone: list[str] = []
    for version, data in zip(old, texts, strict=True):
        if data is not None:
            _, document = decode_metadata(data, version, store.uri_of(metadata_path(version)))
            gone += [f"{METADATA_DIR}/{name}" for name in dropped_names(document)]
    # Versions last, because they say what to delete.
    store.discard(gone)
    store.discard(metadata_path(version) for version in old[:-1])


# -- which files versions reference ----------------------------------------------------------------


def files_of(state: IcebergState) -> frozenset[str]:
    """The names of the files in `METADATA_DIR` that a version references."""
    manifests = [manifest.path for manifest in state.manifests]
    return frozenset(map(_name_of, [state.manifest_list, *manifests, *state.deletes]))


def files_of_all(store: Store) -> frozenset[str]:
    """The names of the files that any existing version references.

    A missing file references nothing: old files are deleted before their versions. Raises
    `DataError` for a damaged one.
    """
    names = store.list_names(METADATA_DIR)
    versions = [name for name in names if parse_metadata_name(name) is not None]
    lists = {
        snapshot["manifest-list"]
        for name, data in _read_named(store, versions)
        for snapshot in decode_metadata(data, 0, store.uri_of(name))[1]["snapshots"]
    }
    found = {*map(_name_of, lists)}
    manifests = [
        told
        for name, data in _read_named(store, sorted(found))
        for told in decode_list(data, store.uri_of(name))
    ]
    found |= {_name_of(told["manifest_path"]) for told in manifests}
    deletes = {_name_of(each["manifest_path"]) for each in manifests if each["content"] == DELETES}
    for name, data in _read_named(store, sorted(deletes)):
        entries = decode_entries(data, 0, None, store.uri_of(name))
        found |= {_name_of(entry["data_file"]["file_path"]) for entry in entries}
    return frozenset(found)


def _read_named(store: Store, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Those files of the folder that exist, with their paths."""
    paths = [f"{METADATA_DIR}/{name}" for name in names]
    for path, data in zip(paths, store.read_present(paths), strict=True):
        if data is not None:
            yield path, data


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
