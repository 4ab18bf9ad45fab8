"""Keytide gives lake tables a primary key, from PySpark and plain Python.

Writers only append; every reader sees exactly one merged row per key.

>>> import keytide as kt, pyarrow as pa
>>> lake = kt.connect("/data/lake")                                     # doctest: +SKIP
>>> t = lake.create_table("shop.orders", pa.schema([("id", pa.int64()), ("status", pa.string())]),
...                       primary_key=["id"])                          # doctest: +SKIP
>>> t.write([{"id": 1, "status": "new"}])                               # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import typing

from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    KeytideWarning,
    NotFoundError,
    SetupError,
    UnsupportedError,
)

if typing.TYPE_CHECKING:
    from keytide import duckdb as duckdb
    from keytide import pinot as pinot
    from keytide import spark as spark
    from keytide import telemetry as telemetry
    from keytide.base.row_kind import RowKind
    from keytide.commit.transaction import WriteResult
    from keytide.compaction.compact import CompactionResult
    from keytide.dml.engine import Changed
    from keytide.lake.external_tables import AppendResult, ExternalTable, FederatedTable
    from keytide.lake.foreign_table import ExternalScan
    from keytide.lake.lake import Lake
    from keytide.lake.opening import connect, open_table
    from keytide.lake.polars_source import scan_polars
    from keytide.lake.scan import Changes, FallbackScan, Scan
    from keytide.lake.table import Table
    from keytide.lake.table_methods import MergeBuilder
    from keytide.maintenance.actions import PurgeResult
    from keytide.maintenance.doctor import Diagnosis, Sign
    from keytide.maintenance.expiry import ExpiryResult
    from keytide.maintenance.orphans import OrphanFiles
    from keytide.maintenance.repair import IndexingResult, MendResult
    from keytide.maintenance.rescale import ConversionResult, RescaleResult
    from keytide.maintenance.restore import RestoreResult
    from keytide.maintenance.rollback import FastForwardResult, RollbackResult
    from keytide.merge.functions.registry import register_merge_function
    from keytide.read.fallback import FallbackExplanation
    from keytide.read.scan import Explanation
    from keytide.read.why import Why
    from keytide.sources.external_definitions import AdoptionResult
    from keytide.sources.federated import UpsertKeys
    from keytide.sources.scan import ExternalChanges, ExternalExplanation
    from keytide.types import Field, parse_sql_type
    from keytide.verify.finding import Finding, Verification

__version__ = "0.1.0"

__all__ = [
    "AdoptionResult",
    "AlreadyExistsError",
    "AppendResult",
    "Changed",
    "Changes",
    "CompactionResult",
    "ConflictError",
    "ConversionResult",
    "DataError",
    "Diagnosis",
    "ExpiryResult",
    "Explanation",
    "ExternalChanges",
    "ExternalExplanation",
    "ExternalScan",
    "ExternalTable",
    "FallbackExplanation",
    "FallbackScan",
    "FastForwardResult",
    "FederatedTable",
    "Field",
    "Finding",
    "IndexingResult",
    "InvalidError",
    "KeytideError",
    "KeytideWarning",
    "Lake",
    "MendResult",
    "MergeBuilder",
    "NotFoundError",
    "OrphanFiles",
    "PurgeResult",
    "RescaleResult",
    "RestoreResult",
    "RollbackResult",
    "RowKind",
    "Scan",
    "SetupError",
    "Sign",
    "Table",
    "UnsupportedError",
    "UpsertKeys",
    "Verification",
    "Why",
    "WriteResult",
    "connect",
    "open_table",
    "parse_sql_type",
    "register_merge_function",
    "scan_polars",
]

_HOMES = {
    "keytide.base.row_kind": ("RowKind",),
    "keytide.commit.transaction": ("WriteResult",),
    "keytide.compaction.compact": ("CompactionResult",),
    "keytide.dml.engine": ("Changed",),
    "keytide.lake.external_tables": (
        "AppendResult",
        "ExternalTable",
        "FederatedTable",
    ),
    "keytide.lake.foreign_table": ("ExternalScan",),
    "keytide.lake.lake": ("Lake",),
    "keytide.lake.opening": (
        "connect",
        "open_table",
    ),
    "keytide.lake.polars_source": ("scan_polars",),
    "keytide.lake.scan": (
        "Changes",
        "FallbackScan",
        "Scan",
    ),
    "keytide.lake.table": ("Table",),
    "keytide.lake.table_methods": ("MergeBuilder",),
    "keytide.maintenance.actions": ("PurgeResult",),
    "keytide.maintenance.doctor": (
        "Diagnosis",
        "Sign",
    ),
    "keytide.maintenance.expiry": ("ExpiryResult",),
    "keytide.maintenance.orphans": ("OrphanFiles",),
    "keytide.maintenance.repair": (
        "IndexingResult",
        "MendResult",
    ),
    "keytide.maintenance.rescale": (
        "ConversionResult",
        "RescaleResult",
    ),
    "keytide.maintenance.restore": ("RestoreResult",),
    "keytide.maintenance.rollback": (
        "FastForwardResult",
        "RollbackResult",
    ),
    "keytide.merge.functions.registry": ("register_merge_function",),
    "keytide.read.fallback": ("FallbackExplanation",),
    "keytide.read.scan": ("Explanation",),
    "keytide.read.why": ("Why",),
    "keytide.sources.external_definitions": ("AdoptionResult",),
    "keytide.sources.federated": ("UpsertKeys",),
    "keytide.sources.scan": (
        "ExternalChanges",
        "ExternalExplanation",
    ),
    "keytide.types": (
        "Field",
        "parse_sql_type",
    ),
    "keytide.verify.finding": (
        "Finding",
        "Verification",
    ),
}
"""The module that defines each public name.

Names are imported on first use, because importing all of them takes most of a second. Only the
errors are imported eagerly. Type checkers read the imports above instead.
"""

_MODULES = ("duckdb", "pinot", "spark", "telemetry")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        if name in _MODULES:
            return importlib.import_module(f"keytide.{name}")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(home), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
