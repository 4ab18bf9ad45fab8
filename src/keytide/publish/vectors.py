"""The deletion vectors of a table in published form: encoded once, identified by a digest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from threading import Lock

from cachetools import LRUCache

from keytide.format.index_files import IndexFile, PortableVector, Vector, stored_vectors
from keytide.publish.content import Content
from keytide.snapshot.live_files import vector_file_path

__all__ = ["digests_of", "encoded", "stored"]

_FILES_MAX = 4096


def digests_of(content: Content) -> Mapping[str, str]:
    """A digest for the vector of each data file that has one, by file name.

    Vectors of index files that this process does not know yet are read and encoded.
    """
    with _LOCK:
        kept = [(file, _DIGESTS.get(_key(content, file))) for file in content.state.vector_files]
    found: dict[str, str] = {}
    for _, digests in kept:
        found |= digests or {}
    new = [file for file, digests in kept if digests is None]
    for file, vectors in zip(new, _stored(content, new), strict=True):
        told = {name: PortableVector.of(vector).digest for name, vector in vectors.items()}
        with _LOCK:
            _DIGESTS[_key(content, file)] = told
        found |= told
    return found


def encoded(content: Content, names: Collection[str]) -> dict[str, PortableVector]:
    """The vectors of some data files, in their portable form."""
    return {name: PortableVector.of(vector) for name, vector in stored(content, names).items()}


def stored(content: Content, names: Collection[str]) -> dict[str, Vector]:
    """The vectors of some data files."""
    wanted = frozenset(names)
    files = [file for file in content.state.vector_files
             if any(place.data_file_name in wanted for place in file.ranges or ())]  # fmt: skip
    vectors: dict[str, Vector] = {}
    for each in _stored(content, files):
        vectors |= {name: vector for name, vector in each.items() if name in wanted}
    return vectors


def _stored(content: Content, files: Sequence[IndexFile]) -> list[dict[str, Vector]]:
    store = content.view.store
    return store.together([partial(_vectors_of, content, file) for file in files])


def _vectors_of(content: Content, file: IndexFile) -> dict[str, Vector]:
    path = vector_file_path(file, content.view.name)
    found = stored_vectors(content.view.store, path, file.ranges or ())
    return {name: vector for name, vector in found.items() if len(vector)}


def _key(content: Content, file: IndexFile) -> tuple[object, str]:
    return content.view.store.identity, file.file_name


_DIGESTS: LRUCache[tuple[object, str], dict[str, str]] = LRUCache(_FILES_MAX)
_LOCK = Lock()
