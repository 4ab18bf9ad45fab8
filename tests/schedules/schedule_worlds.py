"""Kinds of tables, and operations on them, whose requests are interleaved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa

import keytide as kt
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.store import open_store
from keytide.store.interface import Store

__all__ = [
    "COMPACTED",
    "KINDS",
    "NOT_LATE",
    "OPERATIONS",
    "READS",
    "STEPWISE",
    "contents",
    "new_world",
    "rows",
    "supports",
]

_SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())]
)
_COMMON = {
    "bucket": "1", "sequence.field": "v", "compaction.background": "false",
    "snapshot.num-retained.min": "1", "snapshot.time-retained": "30 d",
}  # fmt: skip
_INDEX = {"upsert.mode": "full"}
KINDS: dict[str, dict[str, str | None]] = {
    "latest": {},
    "by commits": {"sequence.field": None},
    "other buckets": {},
    "without a key": {
        "bucket": "-1", "deletion-vectors.enabled": "true", "sequence.field": None,
    },
    "two buckets": {"bucket": "2"},
    "dynamic buckets": {"bucket": "-1", "dynamic-bucket.target-row-num": "2"},
    "deletion vectors": {"deletion-vectors.enabled": "true"},
    "lookup": {"changelog-producer": "lookup"},
    "key index": _INDEX,
    "partial": {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    "sums": {
        "merge-engine": "aggregation", "fields.v.aggregate-function": "sum",
        "fields.s.aggregate-function": "last_non_null_value", "sequence.field": None,
    },
    "first rows": {"merge-engine": "first-row", "sequence.field": None},
    "published": {"publish": "delta", "deletion-vectors.enabled": "true"},
}  # fmt: skip
"""The options in which each kind differs. A table with other buckets has to be rescaled."""
COMPACTED = frozenset(("deletion vectors", "published"))
"""Kinds whose rows are seen after the compaction that follows their write."""


def rows(*lines: str) -> pa.Table:
    """Rows of lines such as `+I 1 3 a`."""
    cells = [line.split() for line in lines]
    kinds = pa.array([kind for kind, *_ in cells])
    columns = [[int(k) for _, k, _, _ in cells], [int(v) for *_, v, _ in cells]]
    texts = pa.array([s for *_, s in cells])
    return pa.table([*map(pa.array, columns), texts], _SCHEMA).append_column("_row_kind", kinds)


def write(*lines: str) -> Callable[[kt.Table], object]:
    """An operation that writes rows."""
    return lambda table: table.write(rows(*lines))


def first_snapshot(table: kt.Table) -> int:
    """The snapshot in which the first rows can be seen."""
    is_compacted = table.primary_key and "deletion-vectors.enabled" in table.options
    return 2 if is_compacted else 1


def merge(table: kt.Table) -> object:
    source = pl.DataFrame({"k": [4], "v": [6], "s": ["m"]})
    merging = table.merge(source, "target.k = source.k")
    return merging.when_matched_update_all().when_not_matched_insert_all().execute()


OPERATIONS: dict[str, Callable[[kt.Table], Any]] = {
    "write": write("+I 1 3 w", "+I 2 3 w"),
    "write later": write("+I 1 4 l", "+I 3 4 l"),
    "write late": write("+I 1 0 late", "+I 4 0 late"),
    "write three": write("+I 5 3 t", "+I 6 3 t", "+I 7 3 t"),
    "write two": write("+I 7 4 n", "+I 8 4 n"),
    "drop": write("-D 4 5 d"),
    "delete": lambda t: t.delete("k = 4"),
    "delete the first": lambda t: t.delete("k = 1"),
    "update": lambda t: t.update({"s": "'u'"}, "k = 4"),
    "update all": lambda t: t.update({"s": "'u'"}, "k > 0"),
    "merge": merge,
    "compact": lambda t: t.compact(full=True),
    "rescale": lambda t: t.rescale(),
    "expire": lambda t: t.expire_snapshots(retain_max=1),
    "roll back": lambda t: t.rollback_to(first_snapshot(t)),
    "restore": lambda t: t.restore(first_snapshot(t)),
    "tag": lambda t: t.create_tag("tagged"),
    "tag the first": lambda t: t.create_tag("first", first_snapshot(t)),
    "branch": lambda t: t.create_branch("other"),
    "branch of the first": lambda t: t.create_branch("early", snapshot_id=first_snapshot(t)),
    "remove orphans": lambda t: t.remove_orphan_files(dry_run=False),
    "fast-forward": lambda t: t.fast_forward("side", discard=True),
    "add a column": lambda t: t.alter(AddColumn(("n",), kt.parse_sql_type("INT"))),
    "overwrite": lambda t: t.overwrite(rows("+I 9 1 o")),
    "truncate": lambda t: t.truncate(),
    "publish": lambda t: t.publish(),
    "scan": lambda t: contents(t),
    "get": lambda t: t.get(4),
}  # fmt: skip

READS = frozenset(("scan", "get"))
STEPWISE = frozenset(("roll back", "fast-forward"))
"""Operations that others can see half done: each snapshot that they delete uncovers an earlier one,
which is a state that the table had.
"""

NOT_LATE = frozenset(("branch", "branch of the first", "tag", "tag the first"))
"""Operations whose late requests are seen: files of a branch that was not created, and a tag that
is taken for the same one of another actor.
"""


_BY_ROWS = ("delete", "delete the first", "update", "update all", "merge")


def supports(kind: str, operation: str) -> bool:
    """Whether an operation is possible on a kind of table."""
    only = {"publish": "published", "rescale": "other buckets"}
    if operation in only:
        return kind == only[operation]
    missing = {
        "without a key": ("drop", "get"),
        "sums": (*_BY_ROWS, "drop"),
        "first rows": (*_BY_ROWS, "drop"),
    }
    return operation not in missing.get(kind, ())


def contents(table: kt.Table, snapshot_id: int | None = None) -> list[tuple[int, Any, Any]]:
    """The rows of a table, in order, in their first columns."""
    return sorted((row["k"], row["v"], row["s"]) for row in table.scan(snapshot_id=snapshot_id))


@cache
def _files(kind: str) -> Mapping[str, bytes]:
    store = open_store(f"memory://{uuid4().hex}")
    given = {**_COMMON, **KINDS[kind]}
    options = {name: value for name, value in given.items() if value is not None}
    key = () if kind == "without a key" else ("k",)
    table = kt.connect("", store=store).create_table("t", _SCHEMA, key, options=options)
    table.write(rows("+I 1 1 o", "+I 4 0 o"))
    table.write(rows("+I 4 1 p"))
    table.create_branch("side").write(rows("+I 1 7 side"))
    if kind == "other buckets":
        table.alter(SetOption("bucket", "2"))
    return {info.path: store.read(info.path) for info in store.list()}


def new_world(kind: str) -> Store:
    """A store with a table `t` of two snapshots, and a branch `side` with one more."""
    store = open_store(f"memory://{uuid4().hex}")
    for path, data in _files(kind).items():
        store.put(path, data)
    return store
