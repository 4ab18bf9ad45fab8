"""`keytide.__all__` is the public surface: sorted, complete, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from types import FunctionType, ModuleType

import pytest

import keytide
import keytide.cdc
import keytide.definition.schema_evolution
import keytide.duckdb
import keytide.lake.external_tables
import keytide.lake.lake
import keytide.lake.opening
import keytide.lake.scan
import keytide.lake.table
import keytide.pinot
import keytide.spark
import keytide.sql.result
from keytide.base.process import cached_property
from keytide.base.record import Record

TREE = ast.parse(inspect.getsource(keytide))


def test_public_names_are_sorted_and_listed_once() -> None:
    assert list(keytide.__all__) == sorted(set(keytide.__all__))


def test_every_public_name_can_be_reached() -> None:
    assert [name for name in keytide.__all__ if not hasattr(keytide, name)] == []


def test_no_public_name_is_left_out() -> None:
    """Submodules become attributes when something imports them; those need no listing."""
    reachable = {
        name
        for name, value in ((name, getattr(keytide, name)) for name in dir(keytide))
        if not name.startswith("_") and name != "annotations" and not isinstance(value, ModuleType)
    }
    assert reachable == set(keytide.__all__)


def test_what_checks_types_finds_the_names_where_they_are_loaded_from() -> None:
    (block,) = (node for node in TREE.body if isinstance(node, ast.If) and node.body[1:])
    told = {
        node.module: tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "keytide"
    }
    assert told == keytide._HOMES


def test_every_name_can_be_completed_and_no_other_is_there() -> None:
    assert {*keytide.__all__, "duckdb", "pinot", "spark", "telemetry"} <= {*dir(keytide)}
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        keytide.conect  # noqa: B018


# -- docstrings name the errors ------------------------------------------------------------------

MODULES = (
    keytide,
    keytide.duckdb,
    keytide.pinot,
    keytide.spark,
    keytide.lake.scan,
    keytide.lake.external_tables,
    keytide.lake.lake,
    keytide.lake.opening,
    keytide.lake.table,
    keytide.definition.schema_evolution,
    keytide.cdc,
)

RAISE_NOTHING = {
    "they give what the object holds": """
        Lake.uri Lake.database Lake.attached Lake.spark Lake.allows_external_files Lake.catalog
        Table.name Table.uri Table.metadata Table.stored Scan.view Scan.live Scan.fields Scan.schema
        Scan.snapshot Scan.snapshot_ids Scan.parts FallbackScan.parts FallbackScan.view
        FallbackScan.snapshot_ids FallbackScan.schema FallbackScan.fields
        Changes.snapshot_ids Changes.view Changes.fields Changes.schema Why.to_arrow
        Verification.is_healthy Verification.summary Diagnosis.is_healthy
        ExternalTable.name FederatedTable.name FederatedTable.format FederatedTable.location
        ExternalChanges.view ExternalChanges.versions ExternalChanges.fields
        ExternalChanges.schema
        ExternalScan.view ExternalScan.version ExternalScan.fields
        ExternalScan.schema ExternalScan.pages""",
    "they spell a sound value in another way": """
        Table.of Scan.of FallbackScan.wrapping Changes.of RowKind.short RowKind.is_add
        Field.sql Field.to_arrow Field.to_json SequenceSource.to_field FeedSpec.image_columns
        FeedSpec.rows_schema Explanation.plan ExternalExplanation.plan FallbackExplanation.plan""",
    "they wait for what is done, and its failure is a warning": "Lake.close Table.close",
    "a folder that cannot be looked at counts as missing": "Lake.exists",
}
"""Public calls whose docstrings name no error, and why there is none."""

OF_RECORDS = {
    f"{name}.{member}"
    for name, thing in ((name, getattr(keytide, name)) for name in keytide.__all__)
    if inspect.isclass(thing) and issubclass(thing, Record)
    for member in ("columns", "to_arrow")
}
"""What every record of something that was done has."""


def public_calls() -> dict[str, str]:
    """The docstrings of all that users call, by name."""
    things = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    found = {}
    for name, thing in {**things, "Result": keytide.sql.result.Result}.items():
        if not inspect.isclass(thing):
            found |= {name: inspect.getdoc(thing) or ""} if callable(thing) else {}
        elif not issubclass(thing, BaseException):
            found |= {f"{name}.{member}": doc for member, doc in members(thing).items()}
    return found


def members(owner: type) -> dict[str, str]:
    """The docstrings of the public methods and properties, inherited ones of Keytide included."""
    calls = (property, cached_property, FunctionType, classmethod)
    classes = [each for each in reversed(owner.__mro__) if each.__module__.startswith("keytide")]
    own = {name: value for each in classes for name, value in vars(each).items()}
    return {
        name: inspect.getdoc(value) or ""
        for name, value in own.items()
        if not name.startswith("_") and isinstance(value, calls)
    }


def test_every_public_call_names_the_errors_that_it_raises() -> None:
    silent = {name for name, doc in public_calls().items() if not re.search(r"\b[Rr]aises?\b", doc)}
    assert silent == OF_RECORDS | set(" ".join(RAISE_NOTHING.values()).split())
