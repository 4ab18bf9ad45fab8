"""Creates scans from the request of a reader: columns, a condition or a key, and a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.arguments import shown
from keytide.base.process import scratch
from keytide.base.text import Moment, counted, epoch_ms
from keytide.definition.kind import require_key
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.format.arrow import from_arrow, in_python, polars_schema, to_arrow
from keytide.format.schema import TableSchema
from keytide.merge.order import joined
from keytide.options import keys
from keytide.predicate.condition import Condition, predicate_of
from keytide.predicate.literals import has_one_spelling, key_values, plain_key
from keytide.predicate.predicate import (
    Comparison,
    In,
    IsNull,
    Predicate,
    conjunction,
    conjuncts,
    field_of,
    plain,
)
from keytide.read.key_index_rebuild import settled_state
from keytide.read.lookup import rows_of_keys
from keytide.read.merged_versions import Lifetime
from keytide.read.plan import KEYS_MAX, RowSelection
from keytide.read.point_lookups import NotPreparedError, point_lookups
from keytide.read.scan import Scan, check_limit
from keytide.read.why import Why, why_of
from keytide.snapshot.bucket_key_index import open_ahead
from keytide.snapshot.state import TableState
from keytide.snapshot.stored_table import StoredTable
from keytide.types import arrow_schema

# -- scans of requests -----------------------------------------------------------------------------


def scan_table(
    table: StoredTable,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    snapshot_id: int | None = None,
    tag: str | None = None,
    as_of: Moment | None = None,
    skip_upsert: bool = False,
    skip_upsert_delete: bool = False,
    limit: int | None = None,
) -> Scan:
    """A scan of one snapshot, by default the latest. Raises like `Table.scan`."""
    check_limit(limit, table.name)
    table = table.pinned()

    # The snapshot that a reader names. None for the latest.
    given = [name for name, value in
             (("snapshot_id", snapshot_id), ("tag", tag), ("as_of", as_of))
             if value is not None]  # fmt: skip
    if len(given) > 1:
        raise InvalidError(
            f"table {table.name}: {' and '.join(given)} each select a snapshot; give only one of "
            "them"
        )
    if snapshot_id is not None:
        snapshot = table.metadata.snapshot(snapshot_id)
    elif tag is not None:
        snapshot = table.metadata.tag(tag)
    elif as_of is not None:
        snapshot = table.metadata.snapshot_as_of(epoch_ms(as_of, table.name))
    else:
        snapshot = None
    # Time travel shows the columns of that time. Other reads show the present columns.
    schema = table.schema if snapshot is None else table.metadata.schema(snapshot.schema_id)
    predicate = None if where is None else predicate_of(where, schema.fields, table.name)
    selected = selected_columns(table.name, schema, columns)
    which = which_rows(schema, table.name, skip_upsert, skip_upsert_delete)
    state = table.newest_state(schema) if snapshot is None else table.state(schema, snapshot)
    if schema.is_indexed:
        state = settled_state(state)
    return replace(_scan(state, selected, predicate), which=which, limit=limit)


def which_rows(
    schema: TableSchema, table: str, skip_upsert: bool, skip_upsert_delete: bool
) -> RowSelection:
    """Which stored rows are shown. Raises `InvalidError` if no index distinguishes them."""
    named = {keys.SCAN_SKIP_UPSERT: skip_upsert, keys.SCAN_SKIP_UPSERT_DELETE: skip_upsert_delete}
    given = [repr(key) for key, is_given in named.items() if is_given]
    if not given:
        return RowSelection.CURRENT
    if not schema.is_indexed:
        raise InvalidError(
            f"table {table}: {' and '.join(given)} returns rows that a key index hides, but the "
            f"table has no '{keys.UPSERT_MODE}'; remove it"
        )
    if len(given) > 1:
        raise InvalidError(
            f"table {table}: {' and '.join(given)} cannot be combined; give only one of them"
        )
    return RowSelection.STORED if skip_upsert else RowSelection.LAST


def whole_scan(state: TableState) -> Scan:
    """All rows of a state that have not expired by now."""
    return _scan(state, state.view.schema.names, None)


def narrowed_scan(
    scan: Scan, columns: Sequence[str] | None = None, predicate: Predicate | None = None
) -> Scan:
    """The rows of a scan that match a predicate, with some of the columns.

    Raises like `scan_table`. They are from the same snapshot, and expire at the same time.
    """
    view = scan.view
    terms = [*conjuncts(predicate), *conjuncts(scan.predicate)]
    selected = selected_columns(view.name, view.schema, columns)
    return replace(scan, columns=selected, predicate=conjunction(terms))


def get_row(table: StoredTable, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    """The row of one key, or None. Raises like `Table.get`."""
    schema = table.schema
    predicate = key_condition(key, schema, table.name)
    state = _state_to_look_up(table, schema)
    lookups = point_lookups(state)
    values = [term.value for term in conjuncts(predicate) if isinstance(term, Comparison)]
    if lookups is not None and len(values) == len(schema.primary_keys):
        with suppress(NotPreparedError):
            return lookups.row(tuple(values))
    scan = _scan(state, schema.names, predicate)
    # Not with `to_pylist`, whose read-ahead threads cost more than they save for one row.
    found = scan.to_polars()
    return in_python(to_arrow(found, scan.schema))[0] if found.height else None


def get_rows(table: StoredTable, keys: Sequence[Any]) -> pa.Table:
    """The rows of some keys, see `Table.get_many`."""
    schema = table.schema
    wanted, condition = keys_condition(keys, schema, table.name)
    state = _state_to_look_up(table, schema)
    scan = _scan(state, schema.names, condition)
    is_searched = state.view.kind.keeps_versions and point_lookups(state) is not None
    if is_searched and wanted.height > KEYS_MAX:
        found = [*rows_of_keys(scan, wanted)]
        rows = pl.concat(found) if found else pl.DataFrame(schema=polars_schema(scan.fields))
        return in_order_of_keys(rows, wanted, schema)
    fields = schema.select(schema.primary_keys)
    # If it is certain, the keys are stored exactly like this, if at all.
    if all(has_one_spelling(f.type) for f in fields):
        exact = to_arrow(wanted.select(schema.primary_keys).drop_nulls(), arrow_schema(fields))
        scan = replace(scan, keys=exact)
    return in_order_of_keys(scan.to_polars(), wanted, schema)


def in_order_of_keys(rows: pl.DataFrame, wanted: pl.DataFrame, schema: TableSchema) -> pa.Table:
    """Those rows with the keys that `keys_condition` returned, in the order of the keys."""
    rows = joined(rows, wanted, schema.primary_keys)
    return to_arrow(rows.sort(_PLACE), arrow_schema(schema.fields))


def why_row(
    table: StoredTable,
    key: Mapping[str, Any] | Any,
    snapshot_id: int | None = None,
    tag: str | None = None,
    as_of: Moment | None = None,
) -> Why:
    """Every stored version of a key, and what happened to each. Raises like `Table.why`."""
    scan = scan_table(table, snapshot_id=snapshot_id, tag=tag, as_of=as_of)
    schema = scan.view.schema
    values = key_values_of(key, schema, table.name)
    predicate = _key_predicate(values, schema, table.name)
    # Without the key index, which finds only the current row.
    state = replace(scan.state, key_files=())
    return why_of(replace(scan, state=state, predicate=predicate), values)


def _scan(state: TableState, columns: tuple[str, ...], predicate: Predicate | None) -> Scan:
    """A scan of the rows that have not expired by now."""
    lifetime = Lifetime.of(state.view)
    if lifetime is None:
        return Scan(state, columns, predicate)
    return Scan(state, columns, conjunction([*conjuncts(predicate), lifetime.shown]))


def _state_to_look_up(table: StoredTable, schema: TableSchema) -> TableState:
    """The latest state. A remote key index is read in parallel with the manifests."""
    if schema.is_indexed and table.store.local_path(paths.INDEX_DIR) is None:
        table.store.begin(partial(_open_index, table, schema))
    state = table.newest_state(schema)
    return state.once(settled_state) if schema.is_indexed else state


def _open_index(table: StoredTable, schema: TableSchema) -> None:
    view = table.view(schema)
    files = table.key_files(table.metadata.latest_snapshot(), view)
    open_ahead(table.store, files, view.options.lookup_cache_bytes_max)


def key_condition(
    key: Mapping[str, Any] | Any, schema: TableSchema, table: str
) -> Predicate | None:
    """The condition for the row of one key. Raises `InvalidError` for an invalid key."""
    return _key_predicate(key_values_of(key, schema, table), schema, table)


def keys_condition(
    keys: Sequence[Any], schema: TableSchema, table: str
) -> tuple[pl.DataFrame, Predicate | None]:
    """Unique keys, as a frame with their positions and the key columns, and a condition for a scan.

    Rows of other keys may match the condition. Raises like `key_condition`.
    """
    # Keys as a frame of the key columns, each once, with the position of its first occurrence.
    _require_key(schema, table)
    fields = schema.select(schema.primary_keys)
    if len(fields) == 1 and not any(
        issubclass(t, Mapping | tuple | list) for t in {*map(type, keys)}
    ):
        columns = {fields[0].name: key_values(keys, fields[0], table)}
    else:
        given = [key_values_of(key, schema, table) for key in keys]
        columns = {
            f.name: key_values([values[f.name] for values in given], f, table) for f in fields
        }
    frame = from_arrow(pa.table(columns)).with_row_index(_PLACE)
    wanted = frame.unique(list(columns), keep="first")

    # A condition that limits a scan to keys, and maybe others: the values of each column.
    terms: list[Predicate] = []
    for name in schema.primary_keys:
        values = wanted[name].unique()
        # NULL equals nothing, and NaN equals itself only in keys.
        if values.null_count() or (values.dtype.is_float() and values.is_nan().any()):
            continue
        type_ = schema.field(name).type
        if has_one_spelling(type_):
            terms.append(In(name, tuple(values.to_list())))
        else:
            scalars = values.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(type_.to_arrow())
            terms.append(In(name, tuple(map(plain, scalars))))
    return wanted, conjunction(terms)


def selected_columns(
    table: str, schema: TableSchema, columns: Sequence[str] | None
) -> tuple[str, ...]:
    """The columns that a reader names, by default all.

    Raises `NotFoundError` and `InvalidError`.
    """
    if columns is None:
        return schema.names
    for name in columns:
        field_of(name, schema.by_name, table)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidError(
            f"table {table}: columns is {list(columns)}; name at least one column, and each only "
            "once (to count rows without reading any, use count())"
        )
    return tuple(columns)


def key_values_of(key: Any, schema: TableSchema, table: str) -> dict[str, Any]:
    """The values of a key by column. Raises `InvalidError` for an invalid key."""
    _require_key(schema, table)
    names = schema.primary_keys
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InvalidError(
                f"table {table}: the primary key is {', '.join(names)}, found "
                f"{', '.join(map(str, key)) or 'nothing'}; give a value for each column"
            )
        return {name: key[name] for name in names}
    values = key if isinstance(key, tuple | list) else (key,)
    if len(values) != len(names):
        raise InvalidError(
            f"table {table}: the primary key is {', '.join(names)}, found "
            f"{counted(len(values), 'value')}, {shown(key)}; give a tuple in this order, or a "
            "dict"
        )
    return dict(zip(names, values, strict=True))


def _require_key(schema: TableSchema, table: str) -> None:
    require_key(schema, table, "a lookup by key", "Scan it with a condition")


def _key_predicate(values: Mapping[str, Any], schema: TableSchema, table: str) -> Predicate | None:
    terms: list[Predicate] = []
    for name, value in values.items():
        if value is None:
            terms.append(IsNull(name))
        else:
            known = plain_key(value, schema.field(name), table)
            terms.append(Comparison(name, "=", known))
    return conjunction(terms)


_PLACE = scratch("place")
