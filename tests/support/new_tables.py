"""New stores, lakes and tables in memory, with columns and options in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

import keytide as kt
from keytide.store import Store, open_store

Columns = str | Mapping[str, str] | pa.Schema | Sequence[kt.Field]


def empty_store() -> Store:
    """A store in memory that no other test knows."""
    return open_store(f"memory://{uuid4().hex}")


def empty_lake() -> kt.Lake:
    """A lake in such a store."""
    return kt.connect("", store=empty_store())


def empty_table(
    columns: Columns,
    key: Sequence[str],
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    *,
    store: Store | None = None,
) -> kt.Table:
    """The table `t` of a lake in the given store, or else in an empty one."""
    typed = fields_of(columns) if isinstance(columns, str | Mapping) else columns
    lake = kt.connect("", store=store or empty_store())
    return lake.create_table("t", typed, key, partition_by, options)


def table_in(store: Store) -> kt.Table:
    """The table `t` of a store."""
    return kt.connect("", store=store).table("t")


def fields_of(columns: str | Mapping[str, str]) -> list[kt.Field]:
    """Columns such as `k INT NOT NULL, v STRING`, or SQL types by the names of columns."""
    if isinstance(columns, str):
        row: Any = kt.parse_sql_type(f"ROW<{columns}>")
        return list(row.fields)
    return [kt.Field(-1, name, kt.parse_sql_type(text)) for name, text in columns.items()]


def dotted(options: Mapping[str, str]) -> dict[str, str]:
    """Options that have names of Python: `a__b_c` stands for `a.b-c`."""
    return {name.replace("__", ".").replace("_", "-"): text for name, text in options.items()}
