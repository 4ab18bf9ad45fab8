"""CALL: procedures of the database `sys`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, fields

import pyarrow as pa

from keytide.errors import InvalidError, NotFoundError
from keytide.sql.expiring import EXPIRING
from keytide.sql.history import HISTORY
from keytide.sql.names import table_of
from keytide.sql.statements import Call
from keytide.table.catalog import Catalog
from keytide.table.scans import why_row
from keytide.table.upkeep.compaction import COMPACTION_ROW, cluster, compact
from keytide.table.upkeep.manifests import MergedManifests, merge_manifests
from keytide.table.upkeep.rescale import RESCALE_ROW, rescale

__all__ = ["call"]


def call(catalog: Catalog, statement: Call) -> pa.Table:
    """Run a procedure. Raises `NotFoundError` naming those there are, `InvalidError` for arguments
    that it does not take.
    """
    name = statement.procedure.lower().removeprefix("sys.")
    procedure = _PROCEDURES.get(name)
    if procedure is None:
        known = ", ".join(f"sys.{known}" for known in sorted(_PROCEDURES))
        raise NotFoundError(f"no procedure {statement.procedure!r}; there is {known}")
    try:
        bound = inspect.signature(procedure).bind(catalog, *statement.arguments, **statement.named)
    except TypeError as error:
        parameters = list(inspect.signature(procedure).parameters.values())[1:]
        names = (str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
        raise InvalidError(
            f"the arguments of sys.{name} do not fit, it takes ({', '.join(names)}): {error}"
        ) from None
    return procedure(*bound.args, **bound.kwargs)


def _why(catalog: Catalog, table: object, *key: object) -> pa.Table:
    return why_row(table_of(catalog, str(table)), key).to_arrow()


def _compact(
    catalog: Catalog, table: object, partitions: object = None, compact_strategy: object = "full",
    order_strategy: object = None, order_by: object = None,
) -> pa.Table:  # fmt: skip
    if compact_strategy not in ("full", "minor"):
        raise InvalidError(
            f"sys.compact: compact_strategy is {compact_strategy!r}; expected 'full' or 'minor'"
        )
    stored = table_of(catalog, str(table))
    places = [text for text in str(partitions or "").split(";") if text.strip()]
    if order_strategy is None and order_by is None:
        done = compact(stored, full=compact_strategy == "full", partitions=places)
    else:
        columns = [name.strip() for name in str(order_by or "").split(",") if name.strip()]
        done = cluster(stored, str(order_strategy or "order"), columns, partitions=places)
    return pa.Table.from_pylist([asdict(done)], schema=COMPACTION_ROW)


def _rescale(catalog: Catalog, table: object) -> pa.Table:
    done = rescale(table_of(catalog, str(table)))
    return pa.Table.from_pylist([asdict(done)], schema=RESCALE_ROW)


_MANIFESTS_ROW = pa.schema([(member.name, pa.int64()) for member in fields(MergedManifests)])


def _compact_manifest(catalog: Catalog, table: object) -> pa.Table:
    done = merge_manifests(table_of(catalog, str(table)))
    return pa.Table.from_pylist([asdict(done)], schema=_MANIFESTS_ROW)


_PROCEDURES: dict[str, Callable[..., pa.Table]] = {
    "compact": _compact,
    "compact_manifest": _compact_manifest,
    "rescale": _rescale,
    "why": _why,
    **HISTORY,
    **EXPIRING,
}
