"""Every member of every stored document of a table, changed one at a time."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa

import keytide as kt
from copies import copies_of
from keytide.format.checksum import SEAL_KEY
from keytide.store import Store

ROOT = "default.db/t/"
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.string())])
TABLES = {
    "keyed": {"bucket": "2", "changelog-producer": "input"},
    "vectors": {"bucket": "1", "deletion-vectors.enabled": "true", "sequence.field": "v"},
    "indexed": {"bucket": "-1", "dynamic-bucket.target-row-num": "2"},
}
Place = tuple[Any, ...]


def a_table(options: dict[str, str]) -> Any:
    """A copy of a table with several schemas, a tag, a branch and a consumer."""

    @copies_of
    def made(store: Store) -> None:
        lake = kt.connect("", store=store)
        table = lake.create_table("t", SCHEMA, ["p", "k"], ["p"], options=options)
        table.write([{"p": "ab"[k % 2], "k": k, "v": f"{k}"} for k in range(6)])
        lake.sql("ALTER TABLE t ADD COLUMN n INT")
        table = lake.table("t")
        table.write([{"p": "a", "k": 0, "v": "9", "n": 1, "_row_kind": "-D"}])
        table.create_tag("first", 1, "9 d")
        table.create_branch("b").write([{"p": "a", "k": 7, "v": "7", "n": 7}])
        table.write([{"p": "b", "k": k, "v": "9", "n": k} for k in range(3)])
        next(table.follow(start=1, consumer="slow", timeout_seconds=0))
        _forget_sizes(store)

    return made


MADE = {name: a_table(options) for name, options in TABLES.items()}


@dataclass(frozen=True)
class Mutation:
    """One member of one stored document that says something else."""

    path: str
    place: Place
    value: Any

    def __str__(self) -> str:
        where = ".".join(map(str, self.place))
        return f"{self.path.removeprefix(ROOT)}: {where} = {self.value!r}"

    def apply(self, store: Store) -> bool:
        """Change the document, and what is told of its length elsewhere; whether that can be."""
        document = _read(store, self.path)
        _put(document, self.place, self.value)
        try:
            _write(store, self.path, document)
        except (TypeError, ValueError, OverflowError, KeyError):
            return False  # Avro has no place for such a value
        return True


GONE = "(nothing)"
OTHERS: dict[type, tuple[Any, ...]] = {
    int: (GONE, -1, 0, 99, 2**31 - 1, 2**63 - 1),
    str: (GONE, "", "gone", "gone/../gone", "1"),
    bytes: (b"", b"\x00", b"\xff" * 40),
    list: (GONE, []),
    dict: (GONE, {}),
    bool: (GONE,),
    type(None): (),
}


def mutations(store: Store) -> Iterator[Mutation]:
    """All of them."""
    for path in sorted(file.path for file in store.list("")):
        if not _is_document(path):
            continue
        for place, value in _leaves(_read(store, path), ()):
            if place and place[-1] != SEAL_KEY:
                for other in OTHERS.get(type(value), ()):
                    if other != value:
                        yield Mutation(path, place, other)


def _is_document(path: str) -> bool:
    folder, name = path.rsplit("/", 2)[-2:]
    return folder in ("schema", "snapshot", "tag", "changelog", "consumer", "manifest") and (
        name not in ("LATEST", "EARLIEST")
    )


def _is_json(path: str) -> bool:
    return "/manifest/" not in path


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    yield place, value
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _leaves(member, (*place, name))
    elif isinstance(value, list):
        for number, member in enumerate(value[:2]):
            yield from _leaves(member, (*place, number))


def _put(document: Any, place: Place, value: Any) -> None:
    for step in place[:-1]:
        document = document[step]
    if value is GONE and isinstance(document, dict):
        document[place[-1]] = None
    elif value is GONE:
        del document[place[-1]]
    else:
        document[place[-1]] = copy.deepcopy(value)


def _read(store: Store, path: str) -> Any:
    data = store.read(path)
    return json.loads(data) if _is_json(path) else list(fastavro.reader(io.BytesIO(data)))


def _write(store: Store, path: str, document: Any) -> None:
    if _is_json(path):
        document.pop(SEAL_KEY, None)
        store.put(path, json.dumps(document).encode())
        return
    schema = fastavro.reader(io.BytesIO(store.read(path))).writer_schema
    data = io.BytesIO()
    fastavro.writer(data, schema, document)
    store.put(path, data.getvalue())
    _tell_size(store, path.rsplit("/", 1)[-1], len(data.getvalue()))


def _tell_size(store: Store, name: str, size: int) -> None:
    if not name.startswith("manifest-") or name.startswith("manifest-list-"):
        return
    for path in [file.path for file in store.list("") if "/manifest/manifest-list-" in file.path]:
        metas = _read(store, path)
        for meta in metas:
            if meta["_FILE_NAME"] == name:
                meta["_FILE_SIZE"] = size
                _write(store, path, metas)


def _forget_sizes(store: Store) -> None:
    """Let snapshots and tags say nothing of the lengths of lists, so that these may change."""
    for path in [file.path for file in store.list("") if _is_document(file.path)]:
        if _is_json(path):
            document = _read(store, path)
            sizes = [name for name in document if name.endswith("ManifestListSize")]
            if sizes:
                _write(store, path, {k: v for k, v in document.items() if k not in sizes})
