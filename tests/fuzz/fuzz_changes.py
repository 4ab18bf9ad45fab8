"""DELETE, UPDATE and MERGE on tables of every kind: what DuckDB makes of the same rows.

Both are given the same statement on the same rows. After it the table has the rows that DuckDB has,
has counted as many, and its changes lead from the rows before to these. A statement that DuckDB
refuses, or whose rows the table cannot hold, is refused and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import adbc_driver_sqlite.dbapi
import behind_writers
import duckdb
import pyarrow as pa
from fuzz_case import Case, Refused
from fuzz_statements import COLUMNS, FLAT, Statement, Texts, rows_of, statement

import keytide as kt
from keytide.dml.memory import MemoryConnector

__all__ = ["run"]

_ODD_NAMES = ["order", "Größe", "a.b", "two words", "SELECT", "it's", "x'y", "-", "group", "a$b",
              "target", "source", "row", "_x", "1a", "ROW_1", "`", '"', "merged", "_0",
              "$row"]  # fmt: skip
_OPTIONS: list[dict[str, str]] = [
    {}, {"bucket": "1"}, {"bucket": "-1"}, {"bucket": "4"},
    {"deletion-vectors.enabled": "true"}, {"deletion-vectors.enabled": "true", "bucket": "-1"},
    {"changelog-producer": "input"}, {"changelog-producer": "lookup"},
    {"changelog-producer": "full-compaction"}, {"merge-engine": "partial-update"},
    {"num-sorted-run.compaction-trigger": "2"}, {"file-index.bloom-filter.columns": "{s}"},
    {"bucket": "-1", "changelog-producer": "lookup"}, {"write-only": "true"},
    {"bucket": "2", "bucket-key": "{k}"},
]  # fmt: skip
_APPENDED: list[dict[str, str]] = [
    {}, {"deletion-vectors.enabled": "true"}, {"bucket": "2", "bucket-key": "{k}"},
]  # fmt: skip


_DUCKDBS_OWN = ["Conversion Error", "Out of Range Error", "Could not find key"]
"""Errors of a value that need not have been computed, and of a ROW that is called as the alias."""


@dataclass
class Worlds:
    """A table of Keytide and one of DuckDB with the same rows, and another one, `u`, in both."""

    case: Case
    lake: kt.Lake
    oracle: duckdb.DuckDBPyConnection
    names: Mapping[str, str]
    columns: Sequence[str]
    key: Sequence[str]
    told: str
    """What kind of table it is."""
    name: str
    """What statements call the table."""
    rows: Callable[[], pa.Table]
    held: kt.Table | None = None

    @property
    def ours(self) -> Texts:
        """How a statement is written for Keytide."""
        return Texts(self.name, self.names, "`")

    @property
    def theirs(self) -> Texts:
        """How a statement is written for DuckDB."""
        return Texts("t", self.names, '"')

    def state(self) -> list[str]:
        """The rows of DuckDB."""
        return _multiset(self.oracle.execute("SELECT * FROM t").to_arrow_table())

    def take_over(self) -> None:
        """Give DuckDB the rows of Keytide."""
        self.oracle.register("given", self.rows())
        self.oracle.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM given")

    def fits(self) -> bool:
        """Whether a table can hold the rows of DuckDB: keys are given, and differ."""
        if not self.key:
            return True
        counts = ", ".join(f"count([{c}])" for c in self.key)
        key = ", ".join(f"[{c}]" for c in self.key)
        text = f"SELECT count(*), {counts}, count(DISTINCT ({key})) FROM [table]"
        return len(set(self.oracle.execute(self.theirs.of(text)).fetchone() or ())) == 1


def run(case: Case) -> None:
    """A table of some kind, and statements that change its rows."""
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        worlds = case.chosen(*[lambda: _stored(case, oracle)] * 4, lambda: _in_memory(case, oracle),
                             lambda: _in_sqlite(case, oracle))  # fmt: skip
        worlds.take_over()
        for _ in range(8):
            _change(worlds)
        if worlds.held is not None:
            found = case.attempt("verify", worlds.held.verify)
            if not isinstance(found, Refused) and found.findings:
                case.note("rows", "verify", f"{worlds.told}: {found}")


# -- tables ----------------------------------------------------------------------------------------


def _stored(case: Case, oracle: duckdb.DuckDBPyConnection) -> Worlds:
    """A table of the lake, with or without a key, perhaps a branch."""
    chance = case.chance
    has_key, is_partitioned = case.often(0.7), case.often(0.4)
    names = _names(case)
    lake = _lake(case, oracle)
    key = (("k", "g") if is_partitioned or case.often(0.3) else ("k",)) if has_key else ()
    options = (behind_writers.OFTEN if has_key else {}) | {
        name: value.format(**names)
        for name, value in chance.choice(_OPTIONS if has_key else _APPENDED).items()
    }
    table = lake.create_table(
        "t", _schema(COLUMNS, names), [names[c] for c in key],
        [names["g"]] if is_partitioned else [], options=options,
    )  # fmt: skip
    _write(case, table, names, key)
    name = "t"
    if case.often(0.15) and len(table.snapshots()):
        table.create_branch("dev")
        name, table = "`t$branch_dev`", table.branch("dev")
    told = f"{name} by {key}, {options}, {'partitioned' if is_partitioned else 'whole'}"
    return Worlds(case, lake, oracle, names, list(COLUMNS), key, told, name,
                  lambda: table.scan().to_arrow(), table)  # fmt: skip


def _write(case: Case, table: kt.Table, names: Mapping[str, str], key: Sequence[str]) -> None:
    chance = case.chance
    takes_deletes = key and table.options.get("merge-engine") != "partial-update"
    for _ in range(chance.choice([0, 1, 2, 4])):
        rows = rows_of(chance, chance.choice([1, 5, 20]))
        if key:
            rows = list({tuple(r[c] for c in key): r for r in rows}.values())
        given = _given(rows, COLUMNS, names)
        if takes_deletes and case.often(0.4):
            kinds = [chance.choice(["+I", "+I", "+U", "-D"]) for _ in rows]
            given = given.append_column("_row_kind", pa.array(kinds))
        table.write(given)
        if case.often(0.2):
            table.compact(full=case.often(0.5))


def _in_memory(case: Case, oracle: duckdb.DuckDBPyConnection) -> Worlds:
    tables, names = MemoryConnector(), _names(case)
    tables.create_table("t", _schema(COLUMNS, names))
    for _ in range(case.chance.choice([0, 1, 3])):
        tables.insert("t", _given(rows_of(case.chance, 6), COLUMNS, names))
    lake = _lake(case, oracle)
    lake.attach("mem", tables.connector)
    return Worlds(case, lake, oracle, names, list(COLUMNS), (), "memory", "mem.t",
                  lambda: tables.rows("t"))  # fmt: skip


def _in_sqlite(case: Case, oracle: duckdb.DuckDBPyConnection) -> Worlds:
    names, place = _names(case), str(case.folder / "a base.db")
    quoted = {c: '"' + names[c].replace('"', '""') + '"' for c in FLAT}
    key = case.chance.choice([("k",), ("k", "g")])
    # SQLite alone takes NULL in a key of several columns, unless it is told not to.
    columns = ", ".join(
        f"{quoted[c]} {type_}{' NOT NULL' if c in key else ''}" for c, type_ in FLAT.items()
    )
    keys = ", ".join(quoted[c] for c in key)
    connect = adbc_driver_sqlite.dbapi.connect
    with closing(connect(place, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({keys}))")
    lake = _lake(case, oracle)
    lake.attach("db", place)
    rows = {tuple(r[c] for c in key): r for r in rows_of(case.chance, 12)}
    given = _given([{c: r[c] for c in FLAT} for r in rows.values()], FLAT, names)
    lake.create_table("first", given.schema, []).write(given)
    lake.sql("INSERT INTO db.t SELECT * FROM first")
    # Whole numbers of SQLite have 64 bits, whatever their type is called.
    wide = {c: pa.int64() if pa.types.is_integer(COLUMNS[c]) else COLUMNS[c] for c in FLAT}
    schema = pa.schema([(names[c], type_) for c, type_ in wide.items()])
    return Worlds(case, lake, oracle, names, list(FLAT), key, f"SQLite by {key}", "db.t",
                  lambda: lake.sql("SELECT * FROM db.t").to_arrow().cast(schema))  # fmt: skip


def _names(case: Case) -> dict[str, str]:
    odd = iter(case.chance.sample(_ODD_NAMES, len(_ODD_NAMES)) if case.often(0.3) else [])
    return {c: next(odd, c) if case.often(0.4) else c for c in COLUMNS}


def _lake(case: Case, oracle: duckdb.DuckDBPyConnection) -> kt.Lake:
    """A lake with the other table."""
    lake = case.lake()
    plain = {c: c for c in COLUMNS}
    given = _given(rows_of(case.chance, case.chance.choice([0, 3, 8])), COLUMNS, plain)
    lake.create_table("u", given.schema, []).write(given)
    oracle.register("given", given)
    oracle.execute("CREATE TABLE u AS SELECT * FROM given")
    return lake


def _schema(columns: Mapping[str, Any], names: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(names[c], COLUMNS[c]) for c in columns])


def _given(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], names: Mapping[str, str]
) -> pa.Table:
    named = [{names[c]: v for c, v in row.items()} for row in rows]
    return pa.Table.from_pylist(named, _schema(columns, names))


# -- one statement ---------------------------------------------------------------------------------


def _change(worlds: Worlds) -> None:
    case = worlds.case
    made = statement(case.chance, worlds.columns)
    before, newest = worlds.state(), _newest(worlds)
    worlds.oracle.execute("BEGIN")
    wanted = _wanted(worlds, made)
    text = made.text(worlds.ours)
    told = f"{worlds.told}: {text}"
    if case.often(0.2):
        case.attempt(f"EXPLAIN {told}", lambda: worlds.lake.sql(f"EXPLAIN {text}").to_pylist())
    if worlds.held is not None and made.has_form and case.often(0.5):
        told = f"{worlds.told}: by calls, {text}"
        found = case.attempt(told, lambda: made.call(worlds.held, worlds.ours).rows)
    else:
        found = case.attempt(told, lambda: worlds.lake.sql(text).row_count)
    if isinstance(found, Refused):
        worlds.oracle.execute("ROLLBACK")
        if isinstance(wanted, int) and not _may_be_refused(str(found.error)):
            case.note("rows", "refused", f"{told}: {str(found.error)[:500]}")
        _compare(worlds, told)
    elif not isinstance(wanted, int):
        worlds.oracle.execute("ROLLBACK")
        if not any(each in wanted for each in _DUCKDBS_OWN):
            case.note("rows", "not refused", f"{told}: done to {found} rows, though {wanted}")
        worlds.take_over()
    else:
        worlds.oracle.execute("COMMIT")
        case.count(made.kind)
        if found != wanted:
            case.note("rows", "count", f"{told}: counted {found}, not {wanted}")
        _compare(worlds, told)
        _fold(worlds, told, before, newest)


def _wanted(worlds: Worlds, made: Statement) -> int | str:
    """How many rows DuckDB changes, or why none can be."""
    oracle = worlds.oracle
    try:
        if made.twice and oracle.execute(worlds.theirs.of(made.twice)).fetchall():
            return "a row is matched twice"
        (count,) = oracle.execute(made.text(worlds.theirs)).fetchone() or (0,)
        return int(count) if worlds.fits() else "two rows have one key, or one has none"
    except duckdb.Error as error:
        return str(error)


def _may_be_refused(error: str) -> bool:
    reasons = ["ignores as 'no new value'", "partial-update does not support DELETE",
               "partial-update does not accept deletes", "use internally"]  # fmt: skip
    return any(reason in error for reason in reasons)


def _newest(worlds: Worlds) -> int:
    held = worlds.held
    return 0 if held is None else max([0, *(snapshot.id for snapshot in held.snapshots())])


def _compare(worlds: Worlds, told: str) -> None:
    found, wanted = Counter(_multiset(worlds.rows())), Counter(worlds.state())
    if found != wanted:
        more, less = [*(found - wanted)][:2], [*(wanted - found)][:2]
        worlds.case.note("rows", "a statement", f"{told}: has {more}, lacks {less}")
        worlds.take_over()


def _fold(worlds: Worlds, told: str, before: Sequence[str], newest: int) -> None:
    """Compare what the changes make of the rows before with the rows there are."""
    held = worlds.held
    if held is None:
        return
    for mode in [
        "diff",
        *(["changelog"] if held.options.get("changelog-producer") == "lookup" else []),
    ]:
        changes = worlds.case.attempt(
            f"changes {mode}, {told}", lambda m=mode: held.changes(newest, mode=m).to_arrow()
        )
        if isinstance(changes, Refused):
            continue
        left = Counter(before)
        rows = _shown(changes.drop_columns(["_row_kind"]))
        for kind, row in zip(changes.column("_row_kind").to_pylist(), rows, strict=True):
            left[row] += 1 if kind in ("+I", "+U") else -1
        if Counter({row: count for row, count in left.items() if count}) != Counter(worlds.state()):
            worlds.case.note("rows", f"changes {mode}", f"{told}: {changes.to_pylist()[:4]}")


def _multiset(rows: pa.Table) -> list[str]:
    return sorted(_shown(rows))


def _shown(rows: pa.Table) -> list[str]:
    columns = [column.to_pylist() for column in rows.columns]
    return [repr(tuple(map(_plain, row))) for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    return value.normalize() if isinstance(value, Decimal) else value
