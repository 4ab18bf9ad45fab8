"""Events whose columns have no type yet, because they contain only NULL, as deletes often do.

The target is created without these columns, and gets them from the first events that have values.
Until then it stores the places of the deletes, so that late events bring no row back.
"""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa

from keytide.catalogs.alter import alter_table
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.growing import grown
from keytide.commit.author import Author
from keytide.definition.schema_evolution import SetOption, growth
from keytide.errors import NotFoundError
from keytide.feeds.flow import FlowRequest
from keytide.snapshot.pinned import StoredTable

__all__ = ["keep_untyped", "typed_events", "untyped_columns"]

_UNTYPED = "user.auto-cdc-untyped"


def typed_events(
    catalog: Catalog, request: FlowRequest, events: pa.Table, author: Author | None
) -> pa.Table:
    """The events without columns that neither they nor the target give a type.

    The target gets columns that it lacks only because earlier events had no type for them.
    """
    table = _existing(catalog, request.target)
    awaited = [] if table is None else json.loads(table.schema.options.get(_UNTYPED, "[]"))
    untyped = untyped_columns(events, request)
    if table is not None:
        _grow(table, events.drop_columns(untyped), awaited, author)
        untyped = [name for name in untyped if name in awaited]
        untyped = [name for name in untyped if name not in table.live.schema.by_name]
    return events.drop_columns(untyped)


def keep_untyped(table: StoredTable, names: list[str]) -> None:
    """Remember columns that a new target lacks."""
    if names and _UNTYPED not in table.schema.options:
        alter_table(table.metadata, [SetOption(_UNTYPED, json.dumps(names))])


def untyped_columns(events: pa.Table, request: FlowRequest) -> list[str]:
    """The columns of the target that contain only NULL and have no type."""
    fixed = {*request.keys, *request.sequence_by, *(request.except_columns or ())}
    return [f.name for f in events.schema if pa.types.is_null(f.type) and f.name not in fixed]


def _grow(table: StoredTable, events: pa.Table, awaited: list[str], author: Author | None) -> None:
    missing = [n for n in awaited if n in events.column_names and n not in table.schema.by_name]
    if missing:
        columns = events.select(missing).schema
        grown(table.pinned(), partial(growth, columns=columns, table=table.name), author=author)


def _existing(catalog: Catalog, name: str) -> StoredTable | None:
    try:
        return catalog.table(name)
    except NotFoundError:
        return None
