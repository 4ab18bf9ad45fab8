"""The procedures of the database `sys`, which CALL runs."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import truncate
from keytide.compaction.compact import CompactionResult
from keytide.definition.external import is_external
from keytide.errors import InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.maintenance.upkeep.compacting import compact
from keytide.maintenance.upkeep.conversion import convert
from keytide.maintenance.upkeep.indexing import IndexingResult, index_files
from keytide.maintenance.upkeep.manifests import compact_manifest
from keytide.maintenance.upkeep.rescale import rescale
from keytide.options import keys
from keytide.publish.publish import publish
from keytide.read.scans import why_row
from keytide.snapshot.stored import StoredTable
from keytide.sources.creation import refresh_external
from keytide.sources.pinned import pin_external
from keytide.sources.why import why_external
from keytide.sql.adopting import ADOPTING
from keytide.sql.expiring import EXPIRING
from keytide.sql.foreign_statements import ELSEWHERE
from keytide.sql.history import HISTORY
from keytide.sql.iceberg_procedures import ICEBERG
from keytide.sql.names import entry_of, table_of
from keytide.sql.procedure import Procedure, chosen, done, places, procedure
from keytide.sql.statements import Call

__all__ = ["PROCEDURES", "call"]


def call(catalog: Catalog, statement: Call) -> pa.Table:
    """Run a procedure.

    Raises `NotFoundError`, listing the procedures, for an unknown one, and `InvalidError` for
    arguments that it does not accept.
    """
    name = re.sub(r"^([^.]+\.)?(sys|system)\.", "", statement.procedure.lower())
    procedure = PROCEDURES.get(name)
    if procedure is None and name in ELSEWHERE:
        raise UnsupportedError(f"sys.{name} is not supported for Keytide tables: {ELSEWHERE[name]}")
    if procedure is None:
        known = ", ".join(f"sys.{known}" for known in sorted(PROCEDURES))
        raise NotFoundError(f"unknown procedure {statement.procedure!r}; procedures: {known}")
    signature = inspect.signature(procedure)
    named = _by_parameter(name, statement.named, [*signature.parameters][1:])
    try:
        bound = signature.bind(catalog, *statement.arguments, **named)
    except TypeError as error:
        parameters = list(signature.parameters.values())[1:]
        names = (str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
        raise InvalidError(
            f"the arguments of sys.{name} are wrong, expected ({', '.join(names)}): {error}"
        ) from None
    return procedure(*bound.args, **bound.kwargs)


_ALIASES = {"snapshot_id": "snapshot", "retain_last": "retain_min"}
"""Argument names in Flink and Iceberg, with those in Paimon on Spark and Keytide."""


def _by_parameter(
    procedure: str, named: Mapping[str, object], parameters: Sequence[str]
) -> dict[str, object]:
    """Named arguments under the procedure's own names. Case-insensitive."""
    known = {parameter.lower(): parameter for parameter in parameters}
    known |= {alias: known[name] for alias, name in _ALIASES.items() if name in known}
    found: dict[str, object] = {}
    for name, value in named.items():
        if name.lower() not in known:
            raise _unknown_argument(procedure, name, parameters, [*known])
        parameter = known[name.lower()]
        if parameter in found:
            raise InvalidError(
                f"sys.{procedure}: {parameter} is given twice, in two spellings; give it once"
            )
        found[parameter] = value
    return found


def _unknown_argument(
    procedure: str, name: str, parameters: Sequence[str], known: Sequence[str]
) -> KeytideError:
    if name.lower() == "options":
        return UnsupportedError(
            f"sys.{procedure} uses the options of the table; use ALTER TABLE ... SET instead of "
            "passing options"
        )
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    takes = ", ".join(parameters)
    return InvalidError(f"sys.{procedure} has no argument {name!r}{hint}; arguments: {takes}")


@checked
def _why(catalog: Catalog, table: str, *key: Any) -> pa.Table:
    entry = entry_of(catalog, table)
    if is_external(entry.schema):
        return why_external(pin_external(entry), key).to_arrow()
    return why_row(catalog.managed(entry), key).to_arrow()


@checked
def _refresh(catalog: Catalog, table: str) -> pa.Table:
    """Update the columns of an external table, and report whether they changed."""
    entry = entry_of(catalog, table)
    if not is_external(entry.schema):
        raise UnsupportedError(
            f"sys.refresh: table {entry.name} is a table of the lake, which is always current; "
            "only external tables can be refreshed"
        )
    return pa.table({"changed": [refresh_external(entry)]})


_Strategy = Literal["full", "minor"]


def _compact(
    table: StoredTable, partitions: str | None = None,
    compact_strategy: _Strategy = "full", order_strategy: str | None = None,
    order_by: str | None = None, where: str | None = None,
) -> CompactionResult:  # fmt: skip
    wanted = chosen("compact", table, partitions, where)
    if order_strategy == "none":
        order_strategy = None
    if order_by is not None:
        order_strategy = order_strategy or "order"
    is_full = compact_strategy == "full"
    if order_strategy is not None and not is_full:
        raise InvalidError(
            "sys.compact: sorting requires all files, so compact_strategy cannot be 'minor'; "
            "remove it, or remove order_strategy and order_by"
        )
    columns = [name.strip() for name in (order_by or "").split(",") if name.strip()]
    return compact(
        table, full=is_full, order_by=columns, order_strategy=order_strategy, partitions=wanted
    )


@checked
def _drop_partition(catalog: Catalog, table: str, *partitions: str) -> pa.Table:
    named = [place for each in partitions for place in places(each)]
    if not named:
        raise InvalidError(
            "sys.drop_partition: no partition is given; to drop all rows, use TRUNCATE"
        )
    truncate(table_of(catalog, table), named)
    return done()


@checked
def _compact_database(
    catalog: Catalog, including_databases: str = ".*", including_tables: str = ".*",
    excluding_tables: str | None = None, compact_strategy: _Strategy = "full",
) -> pa.Table:  # fmt: skip
    """Compact all tables whose names match, one by one.

    Tables that cannot be compacted are skipped.
    """
    rows = []
    for name in catalog.tables():
        database = name.partition(".")[0]
        is_meant = _matches(including_databases, database) and _matches(including_tables, name)
        if not is_meant or (excluding_tables is not None and _matches(excluding_tables, name)):
            continue
        try:
            compacted = _compact(table_of(catalog, name), None, compact_strategy)
        except UnsupportedError as error:
            rows.append({"table": name, "left_because": str(error)})
        else:
            rows.append({"table": name, **asdict(compacted)})
    return pa.Table.from_pylist(rows, schema=_TABLES_ROW)


_TABLES_ROW = pa.schema(
    [("table", pa.string()), *CompactionResult.columns(), ("left_because", pa.string())]
)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise InvalidError(f"{pattern!r} is not a valid regular expression: {error}") from None


@checked
def _rescale(
    catalog: Catalog, table: str, bucket_num: int | None = None, partitions: str | None = None,
    where: str | None = None,
) -> pa.Table:  # fmt: skip
    stored = table_of(catalog, table)
    buckets = stored.schema.options.get(keys.BUCKET)
    if bucket_num is not None and str(bucket_num) != buckets:
        raise InvalidError(
            f"sys.rescale: bucket_num is {bucket_num}, but '{keys.BUCKET}' of table "
            f"{stored.name} is {buckets}; run ALTER TABLE {table} SET ('{keys.BUCKET}' = "
            f"'{bucket_num}') first"
        )
    return rescale(stored, chosen("rescale", stored, partitions, where)).to_arrow()


def _rewrite_file_index(table: StoredTable, where: str | None = None) -> IndexingResult:
    return index_files(table, chosen("rewrite_file_index", table, None, where))


PROCEDURES: dict[str, Procedure] = {
    "compact": procedure(_compact),
    "compact_database": _compact_database,
    "compact_manifest": procedure(compact_manifest),
    "convert": procedure(convert),
    "drop_partition": _drop_partition,
    "publish": procedure(publish),
    "refresh": _refresh,
    "rescale": _rescale,
    "rewrite_file_index": procedure(_rewrite_file_index),
    "why": _why,
    **ADOPTING,
    **HISTORY,
    **ICEBERG,
    **EXPIRING,
}
