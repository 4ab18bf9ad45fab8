"""Lives of tables with an index of keys beside another engine, and a model of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pyarrow as pa
from hypothesis import strategies as st

import keytide as kt

__all__ = ["KEYS", "SCHEMA", "TABLES", "Model", "act", "steps", "table_of"]

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("s", pa.int64()), ("v", pa.string()),
     ("gone", pa.bool_())]
)  # fmt: skip
TABLES: dict[str, dict[str, str]] = {
    "by arrival": {},
    "by a column": {"sequence.field": "s"},
    "smallest first": {"sequence.field": "s", "sequence.field.sort-order": "descending"},
    "by text": {"sequence.field": "v"},
    "with tombstones": {"sequence.field": "s", "upsert.delete-record-column": "gone"},
    "merged": {
        "sequence.field": "s",
        "upsert.mode": "partial",
        "upsert.drop-out-of-order-record": "true",
    },
    "two buckets": {"sequence.field": "s", "bucket": "2"},
}
KEYS = range(4)
rows_ = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "append", "append", "delete", "update", "compact", "compact fully", "drop",
             "another compacts"]
        ),
        rows_,
    ),
    min_size=2, max_size=8,
)  # fmt: skip


class Model:
    """The row of each key, and what its last version is compared by."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.last: dict[int, tuple[object, dict[str, object] | None]] = {}
        self.names = itertools.count()

    def row(self, k: int, s: int) -> dict[str, object]:
        # Every second tombstone deletes; texts compare as their numbers do.
        gone = "upsert.delete-record-column" in self.options and s % 2 == 1
        return {"k": k, "s": s, "v": f"{s + 5000}-{next(self.names):04}", "gone": gone}

    def arrives(self, row: dict[str, object], *, deletes: bool = False) -> None:
        column = self.options.get("sequence.field")
        by = 0 if column is None else row[column]
        known = self.last.get(row["k"])  # type: ignore[call-overload]
        is_late = known is not None and by < known[0]  # type: ignore[operator]
        if "sequence.field.sort-order" in self.options:
            is_late = known is not None and by > known[0]  # type: ignore[operator]
        if not is_late:
            self.last[row["k"]] = (by, None if deletes or row["gone"] else row)  # type: ignore[index]

    @property
    def forgets_deletes(self) -> bool:
        """Whether deletes are lost when another engine compacts: the index has no texts."""
        is_deleted = any(row is None for _, row in self.last.values())
        return is_deleted and self.options.get("sequence.field") == "v"

    @property
    def rows(self) -> dict[int, dict[str, object]]:
        return {k: row for k, (_, row) in sorted(self.last.items()) if row is not None}


def table_of(rows: list[dict[str, object]], *, kind: str = "+I") -> pa.Table:
    kinds = pa.array([kind] * len(rows))
    return pa.Table.from_pylist(rows, SCHEMA).append_column("_row_kind", kinds)


def act(
    table: kt.Table,
    model: Model,
    step: str,
    given_rows: list[tuple[int, int]],
    append: Callable[[kt.Table, pa.Table], None],
    compact: Callable[[kt.Table], None],
) -> None:
    """One step of a life, and what the model makes of it.

    `append` and `compact` are of another engine.
    """
    rows = [model.row(k, s) for k, s in given_rows]
    if step in ("write", "append"):
        if step == "append":
            append(table, table_of(rows))
        else:
            table.write(table_of(rows))
        for row in rows:
            model.arrives(row)
    elif step == "drop":
        table.write(table_of(rows, kind="-D"))
        for row in rows:
            model.arrives(row, deletes=True)
    elif step == "delete":
        (k, _), *_ = given_rows
        table.delete(f"k = {k}")
        if k in model.rows:
            model.last[k] = (model.last[k][0], None)
    elif step == "update":
        (k, s), *_ = given_rows
        if model.options.get("sequence.field") == "v":
            return
        table.update({"v": f"'u{s}'"}, f"k = {k}")
        if k in model.rows:
            model.last[k] = (model.last[k][0], {**model.rows[k], "v": f"u{s}"})
    elif step == "another compacts":
        if not model.forgets_deletes:
            compact(table)
    else:
        table.compact(full=step == "compact fully")
