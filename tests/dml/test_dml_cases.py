"""Every case of DELETE, UPDATE and MERGE, on every kind of table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from row_change_cases import ADDED, CASES, Definition, definitions, inserts, message_of, prefixed

import keytide as kt
from keytide.dml.memory import MemoryConnector

Case = dict[str, Any]


class Keyed:
    """Tables of the lake with a primary key."""

    catalog = ""
    clause = "PRIMARY KEY ({}) NOT ENFORCED"

    def __init__(self, warehouse: str, spark: Any = None) -> None:
        self.lake = kt.connect(warehouse, spark=spark)

    def why_not(self, case: Case, known: dict[str, Definition]) -> str | None:
        """The error of a case that such tables cannot carry out."""
        if "check_constraint" in case.get("requires", ()):
            return "CHECK"
        if any(not each.key for each in known.values()):
            return "two rows would have the primary key|Cannot write null"
        return None

    def create(self, definition: Definition) -> None:
        text = definition.create.sql(dialect="duckdb")
        key = ", ".join(definition.key or [c.name for c in definition.create.this.expressions][:1])
        added = f", {ADDED} BIGINT" if definition.key == (ADDED,) else ""
        self.lake.sql(f"{text[:-1]}{added}, {self.clause.format(key)})")

    def run(self, text: str) -> Any:
        return self.lake.sql(text)


class Appended(Keyed):
    """Tables of the lake without a key; rows that change are marked as dead."""

    options = "'deletion-vectors.enabled' = 'true'"

    def why_not(self, case: Case, known: dict[str, Definition]) -> str | None:
        return "CHECK" if "check_constraint" in case.get("requires", ()) else None

    def create(self, definition: Definition) -> None:
        self.lake.sql(f"{definition.create.sql(dialect='duckdb')} WITH ({self.options})")


class Rewritten(Appended):
    """The same, of which files are written again."""

    options = "'deletion-vectors.enabled' = 'false'"


class Memory(Keyed):
    """Tables in memory, attached to a lake."""

    catalog = "mem"

    def __init__(self, warehouse: str, spark: Any = None) -> None:
        super().__init__(warehouse, spark)
        self.tables = MemoryConnector()
        self.lake.attach("mem", self.tables.connector)
        self.plain = kt.connect(f"{warehouse}/definitions")

    def why_not(self, case: Case, known: dict[str, Definition]) -> str | None:
        return "CHECK" if "check_constraint" in case.get("requires", ()) else None

    def create(self, definition: Definition) -> None:
        self.plain.sql(definition.create.sql(dialect="duckdb"))
        table = self.plain.table(definition.name)
        defaults = {
            f.name: f.default_value
            for f in table.metadata.latest_schema().fields
            if f.default_value
        }
        self.tables.create_table(definition.name, table.scan().schema, defaults=defaults)

    def run(self, text: str) -> Any:
        if not text.startswith("INSERT"):
            return self.lake.sql(text)
        name = text.split()[2].split("(")[0]
        result = self.plain.sql(text)
        rows = self.plain.table(name).scan().to_arrow()
        self.plain.sql(f"TRUNCATE TABLE {name}")
        self.tables.insert(name, rows)
        return result


KINDS = {"keyed": Keyed, "appended": Appended, "rewritten": Rewritten, "memory": Memory}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: Case, kind: str, warehouse: str) -> None:
    check(case, KINDS[kind](warehouse))


def check(case: Case, tables: Any) -> None:
    known = definitions(case)
    if isinstance(tables, Appended | Memory):
        known = {n: Definition(n, d.create, ()) for n, d in known.items()}
    why_not = tables.why_not(case, known)
    if why_not is not None:
        with pytest.raises(kt.KeytideError, match=why_not):
            carry_out(case, tables, known)
        return
    if "expect_error" in case:
        prepare(case, tables, known)
        with pytest.raises(kt.KeytideError, match=message_of(case)):
            tables.run(prefixed_text(case["statement"], known, tables))
    else:
        assert carry_out(case, tables, known).row_count == case["expect_count"]
    if "verify_sql" in case:
        found = tables.run(prefixed_text(case["verify_sql"], known, tables)).to_arrow()
        assert in_any_order(rows_of(found)) == in_any_order(case["expect_rows"])


def carry_out(case: Case, tables: Any, known: dict[str, Definition]) -> Any:
    prepare(case, tables, known)
    return tables.run(prefixed_text(case["statement"], known, tables))


def prepare(case: Case, tables: Any, known: dict[str, Definition]) -> None:
    for definition in known.values():
        tables.create(definition)
    for text in inserts(case, known):
        tables.run(prefixed_text(text, known, tables))


def prefixed_text(text: str, known: dict[str, Definition], tables: Any) -> str:
    is_native = not tables.catalog or text.startswith("INSERT")
    return text if is_native else prefixed(text, known, tables.catalog)


def rows_of(table: pa.Table) -> list[list[Any]]:
    return [[_plain(value) for value in row.values()] for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    return float(value) if type(value).__name__ == "Decimal" else value


def in_any_order(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(
        ([_plain(v) for v in row] for row in rows),
        key=lambda row: [(v is None, str(v)) for v in row],
    )


# Each of them takes Spark a second or two: a sample always, the rest where time is taken for it.
ON_SPARK = ("keyed", "appended")
SAMPLE = {
    "del-modulo", "del-correlated-in", "del-not-in-with-null", "upd-constant", "upd-copy-column",
    "upd-not-null-computed", "upd-set-correlated-subquery", "mrg-query-source", "mrg-on-false",
    "mrg-update-key-and-all-columns", "mrg-subquery-in-branch", "mrg-one-source-many-targets",
    "mrg-default-column", "mrg-first-branch-wins", "mrg-self-source", "mrg-type-mismatch",
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kind", ON_SPARK)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["id"], marks=[] if case["id"] in SAMPLE else [pytest.mark.soak])
        for case in CASES
    ],
)
def test_case_on_spark(case: Case, kind: str, warehouse: str, spark: Any) -> None:
    check(case, KINDS[kind](warehouse, spark))
