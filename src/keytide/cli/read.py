"""Commands that read rows, or show how they would be read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
import typer

from keytide.base.text import counted
from keytide.cli.arguments import (
    AsOf,
    Columns,
    FormatOption,
    Limit,
    SnapshotId,
    TableArgument,
    Tag,
    Warehouse,
    Where,
    names,
    open_readable_table,
)
from keytide.cli.output import (
    Format,
    Grid,
    Words,
    grid,
    records,
    tracked_batches,
    write_document,
    write_rows,
)
from keytide.definition.kind import require_key
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.lake.external_table import ExternalTable
from keytide.lake.table import Table
from keytide.predicate.values.literals import scalar_of_text
from keytide.read.explanation import Explanation
from keytide.read.fallback import FallbackExplanation
from keytide.read.why import Why
from keytide.sources.scan import ExternalExplanation
from keytide.types import Field

__all__ = ["explain", "get", "scan", "why"]

_Key = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY...",
        help="Values of the primary key columns, in order. Put -- before a negative number.",
        show_default=False,
    ),
]


def scan(
    table: TableArgument,
    warehouse: Warehouse = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Read the rows of a table, one merged row per key.

    json writes JSON lines, one object per row. The order of the rows is not guaranteed. Memory use
    is bounded, however many rows there are.

    Example: keytide scan /data/lake/shop.db/orders --where "status = 'open'" --limit 10
    """
    found = open_readable_table(table, warehouse)
    when = _when(found, snapshot_id, tag, as_of)
    wanted = found.scan(names(columns) or None, where, **when)
    write_rows(tracked_batches(wanted), wanted.schema, format, limit)


def get(
    table: TableArgument,
    key: _Key,
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Look up the row of one key.

    The exit code is 1 if there is no such row. Write values as json does: dates and times in ISO
    8601, bytes in base64.

    Example: keytide get -w /data/lake shop.order_lines 4711 2
    """
    found = open_readable_table(table, warehouse)
    values = _key_of(found, key)
    row = found.get(values)
    if row is None:
        raise NotFoundError(f"table {found.name} has no row with {_told(values, key)}")
    rows = pa.Table.from_pylist([row], schema=found.schema)
    write_rows(rows.to_batches(), rows.schema, format)


def why(
    table: TableArgument,
    key: _Key,
    warehouse: Warehouse = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Explain how the row of a key was merged.

    Shows every stored version in merge order and its effect, and for each column the versions that
    its value comes from. csv contains only the versions. The exit code is 1 if no version is
    stored.

    Example: keytide why -w /data/lake shop.order_lines 4711 2
    """
    found = open_readable_table(table, warehouse)
    values = _key_of(found, key)
    told = found.why(values, **_when(found, snapshot_id, tag, as_of))
    versions = told.to_arrow()
    if not versions.num_rows:
        raise NotFoundError(f"table {found.name} stores no version of {_told(values, key)}")
    if format is Format.CSV:
        write_rows(versions.to_batches(), versions.schema, format)
        return
    write_document(_document(told), [Words(str(told))], format)


def explain(
    table: TableArgument,
    warehouse: Warehouse = None,
    columns: Columns = None,
    where: Where = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the plan of a scan without reading data.

    Shows how many partitions, buckets, files, rows and bytes remain after each pruning step, and
    how many files must be merged.

    Example: keytide explain -w /data/lake shop.orders --where "order_id = 4711"
    """
    found = open_readable_table(table, warehouse)
    when = _when(found, snapshot_id, tag, as_of)
    explained = found.scan(names(columns) or None, where, **when).explain()
    if isinstance(explained, ExternalExplanation):
        _write_explained(explained, format)
        return
    if isinstance(explained, FallbackExplanation):
        _write_plans({"first": explained.first, "fallback": explained.fallback}, format)
        return
    stages = _stages(explained)
    if format is Format.CSV:
        rows = pa.Table.from_pylist(stages)
        write_rows(rows.to_batches(), rows.schema, format)
        return
    document = {**asdict(explained), "funnel": stages}
    write_document(document, _shown(explained, stages), format)


def _write_plans(plans: Mapping[str, Explanation], format: Format) -> None:
    """Write the plans of several branches."""
    if format is Format.CSV:
        stages = [{"table": p.table, **stage} for p in plans.values() for stage in _stages(p)]
        rows = pa.Table.from_pylist(stages)
        write_rows(rows.to_batches(), rows.schema, format)
        return
    document = {name: {**asdict(p), "funnel": _stages(p)} for name, p in plans.items()}
    shown = [part for plan in plans.values() for part in _shown(plan, _stages(plan))]
    write_document(document, shown, format)


def _stages(explained: Explanation) -> list[dict[str, Any]]:
    return [asdict(stage) for stage in explained.funnel.stages]


def _write_explained(explained: ExternalExplanation, format: Format) -> None:
    document = asdict(explained)
    if format is Format.CSV:
        rows = pa.Table.from_pylist([document])
        write_rows(rows.to_batches(), rows.schema, format)
        return
    write_document(document, [Words(str(explained))], format)


def _when(
    table: Table | ExternalTable, snapshot_id: int | None, tag: str | None, as_of: Any
) -> dict[str, Any]:
    """The arguments for time travel."""
    if isinstance(table, Table):
        return {"snapshot_id": snapshot_id, "tag": tag, "as_of": as_of}
    if as_of is not None or (snapshot_id is not None and tag is not None):
        raise UnsupportedError(
            f"table {table.name} is an external table; select a version with --snapshot-id or "
            "--tag, not with a time"
        )
    return {"version": snapshot_id if tag is None else tag}


def _shown(explained: Explanation, stages: list[dict[str, Any]]) -> tuple[Words, Grid, Words]:
    title, *_, merging = str(explained).splitlines()
    return Words(title, "bold"), grid(stages), Words(merging)


def _document(told: Why) -> dict[str, Any]:
    versions = told.to_arrow()
    stored = records(versions)
    row = told.row
    if row is not None:
        columns = [field for field in versions.schema if field.name in row]
        (row,) = records(pa.Table.from_pylist([row], schema=pa.schema(columns)))
    return {
        "table": told.table,
        "key": {name: stored[0][name] for name in told.key},
        "snapshot_id": told.snapshot_id,
        "merge_engine": told.merge_engine,
        "versions": stored,
        "row": row,
        "taken": told.taken,
    }


def _told(values: Mapping[str, Any], texts: Sequence[str]) -> str:
    return ", ".join(f"{name} = {text}" for name, text in zip(values, texts, strict=True))


def _key_of(table: Table | ExternalTable, texts: list[str]) -> dict[str, Any]:
    schema = table.table_schema
    require_key(schema, table.name, "a lookup by key", "Query it with keytide sql")
    if len(texts) != len(schema.primary_keys):
        raise typer.BadParameter(
            f"the primary key of {table.name} is {', '.join(schema.primary_keys)}; found "
            f"{counted(len(texts), 'value')}: {' '.join(texts)}"
        )
    fields = schema.select(schema.primary_keys)
    return {f.name: _parsed(text, f, table.name) for f, text in zip(fields, texts, strict=True)}


def _parsed(text: str, field: Field, table: str) -> Any:
    if not pa.types.is_binary(field.type.to_arrow()):
        return scalar_of_text(text, field, table)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidError(
            f"table {table}: key column {field.name!r} is {field.type.sql()}, found {text!r}; "
            f"write its bytes as base64: {error}"
        ) from error
