"""Random DELETE, UPDATE and MERGE of a table, in words that Keytide and DuckDB share.

In their texts `[table]` stands for the table and `[c]` for its column c, whatever these are called;
the columns of the other table, `u`, are called as they are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

import keytide as kt

__all__ = ["COLUMNS", "FLAT", "Statement", "Texts", "rows_of", "statement"]

COLUMNS: dict[str, pa.DataType] = {
    "k": pa.int32(),
    "g": pa.int64(),
    "n": pa.int64(),
    "x": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "d": pa.date32(),
    "m": pa.decimal128(10, 2),
    "t": pa.timestamp("us"),
    "y": pa.binary(),
    "a": pa.list_(pa.int32()),
    "r": pa.struct([("p", pa.int32()), ("q", pa.string())]),
}
FLAT = {"k": "INTEGER", "g": "BIGINT", "n": "BIGINT", "x": "DOUBLE", "s": "TEXT", "b": "BOOLEAN",
        "d": "DATE", "m": "DECIMAL(10, 2)", "t": "TIMESTAMP", "y": "BLOB"}  # fmt: skip
"""The columns that a table of SQLite can have."""

_VALUES: dict[str, list[Any]] = {
    "k": list(range(-1, 9)),
    "g": [0, 1, 2],
    "n": [-5, 0, 1, 2, 3, 9_000_000_000, None],
    "x": [-1.5, 0.0, 0.5, 2.0, None],
    "s": ["", "a", "ab", "abc", "b", "A", "ü", "it's", "a%b", "a_c", " a ", None],
    "b": [True, False, None],
    "d": [date(1969, 12, 31), date(2024, 2, 29), date(1, 1, 1), None],
    "m": [Decimal("0.00"), Decimal("1.50"), Decimal("-0.05"), Decimal("99999999.99"), None],
    "t": [datetime(2024, 2, 29, 1, 2, 3, 456789), datetime(1969, 12, 31, 23, 59, 59), None],
    "y": [b"", b"\0", b"\xff'", None],
    "a": [[], [1], [1, None, 3], None],
    "r": [{"p": 1, "q": "a"}, {"p": None, "q": None}, None],
}
_LITERALS: dict[str, list[str]] = {
    "k": ["-1", "0", "1", "3", "7"],
    "g": ["0", "1", "2"],
    "n": ["-5", "0", "2", "9000000000"],
    "x": ["CAST(-1.5 AS DOUBLE)", "CAST(0.5 AS DOUBLE)", "CAST(2 AS DOUBLE)"],
    "s": ["''", "'a'", "'ab'", "'b'", "'ü'", "'A'", "'it''s'", "'a_c'"],
    "b": ["TRUE", "FALSE"],
    "d": ["DATE '1969-12-31'", "DATE '2024-02-29'"],
    "m": ["CAST(-0.05 AS DECIMAL(10, 2))", "1.50", "0.00"],
    "t": ["TIMESTAMP '2024-02-29 01:02:03.456789'", "TIMESTAMP '1969-12-31 23:59:59'"],
}
_PATTERNS = ["'a%'", "'%b'", "'_'", "'a_c'", "''", "'%'", "'A%'", "'%''%'", "'ü'"]
_OWN: dict[str, list[str]] = {
    "k": ["{k} + 1", "-{k}", "7 - {k}", "{k} * 1000000000",
          "CASE {k} WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE {k} END"],
    "g": ["2 - {g}", "{g} + 1", "{k}"],
    "n": ["{n} * 2 - {k}", "length({s})", "abs({n})", "{k}", "CAST({x} AS BIGINT)"],
    "x": ["{x} * 2", "{k}", "CAST({m} AS DOUBLE)", "{m}"],
    "s": ["upper({s})", "{s} || 'x'", "substring({s}, 1, 1)", "trim({s})", "CAST({k} AS VARCHAR)",
          "replace({s}, 'a', '''')"],
    "b": ["NOT {b}", "{k} > {g}"],
    "d": ["CAST({t} AS DATE)"],
    "m": ["-{m}", "{m} + 1", "{k}"],
    "t": ["CAST({d} AS TIMESTAMP)", "{d}"],
}  # fmt: skip
"""Values of a column that come of the columns of a row."""


def rows_of(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows of either table."""
    return [{n: chance.choice(v) for n, v in _VALUES.items()} for _ in range(count)]


@dataclass(frozen=True)
class Texts:
    """How somebody calls the table and its columns."""

    table: str
    names: Mapping[str, str]
    quote: str

    def of(self, text: str) -> str:
        """A text with these names."""
        return re.sub(r"\[(.)\]", lambda found: self._quoted(found[1]), text).replace(
            "[table]", self.table
        )

    def _quoted(self, column: str) -> str:
        return self.quote + self.names[column].replace(self.quote, self.quote * 2) + self.quote


@dataclass(frozen=True)
class When:
    """One WHEN; `values` None means a DELETE."""

    kind: str
    values: Mapping[str, str] | None
    condition: str | None

    @property
    def text(self) -> str:
        """It in SQL."""
        condition = "" if self.condition is None else f" AND {self.condition}"
        return f"WHEN {self.kind}{condition} THEN {self._then}"

    @property
    def _then(self) -> str:
        if self.values is None:
            return "DELETE"
        if self.kind == "NOT MATCHED":
            columns = ", ".join(f"[{c}]" for c in self.values)
            return f"INSERT ({columns}) VALUES ({', '.join(self.values.values())})"
        return f"UPDATE SET {_set(self.values)}"


@dataclass(frozen=True)
class Statement:
    """A statement about a table."""

    kind: str
    alias: str
    values: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    source: str = ""
    source_alias: str = ""
    on: str = ""
    whens: Sequence[When] = ()

    @property
    def has_form(self) -> bool:
        """Whether its names are those that calls of `Table` give."""
        return self.alias == "target"

    def text(self, texts: Texts) -> str:
        """It in SQL."""
        where = "" if self.where is None else f" WHERE {self.where}"
        head = f"[table] AS {self.alias}"
        if self.kind == "UPDATE":
            return texts.of(f"UPDATE {head} SET {_set(self.values)}{where}")
        if self.kind == "DELETE":
            return texts.of(f"DELETE FROM {head}{where}")
        whens = " ".join(when.text for when in self.whens)
        source = f"({self.source}) AS {self.source_alias}"
        return texts.of(f"MERGE INTO {head} USING {source} ON {self.on} {whens}")

    @property
    def twice(self) -> str | None:
        """A query of the rows that a MERGE means more than once."""
        matched = [when.condition or "TRUE" for when in self.whens if when.kind == "MATCHED"]
        if not matched:
            return None
        return (
            f"SELECT {self.alias}.rowid FROM [table] AS {self.alias} JOIN ({self.source}) AS "
            f"{self.source_alias} ON {self.on} WHERE ({') OR ('.join(matched)}) "
            f"GROUP BY {self.alias}.rowid HAVING count(*) > 1"
        )

    def call(self, table: kt.Table, texts: Texts) -> Any:
        """Carry it out by a call of a table."""
        where = None if self.where is None else texts.of(self.where)
        if self.kind == "DELETE":
            return table.delete(where)
        if self.kind == "UPDATE":
            return table.update(_named(self.values, texts), where)
        merge = table.merge(texts.of(self.source), texts.of(self.on))
        for when in self.whens:
            condition = None if when.condition is None else texts.of(when.condition)
            begun = "when_" + when.kind.lower().replace(" ", "_")
            if when.values is None:
                merge = getattr(merge, f"{begun}_delete")(condition)
            else:
                verb = "insert" if when.kind == "NOT MATCHED" else "update"
                given = _named(when.values, texts)
                merge = getattr(merge, f"{begun}_{verb}")(given, condition)
        return merge.execute()


def _set(values: Mapping[str, str]) -> str:
    return ", ".join(f"[{column}] = {value}" for column, value in values.items())


def _named(values: Mapping[str, str], texts: Texts) -> dict[str, str]:
    return {texts.names[column]: texts.of(value) for column, value in values.items()}


# -- what there is to say --------------------------------------------------------------------------


def statement(chance: random.Random, columns: Sequence[str]) -> Statement:
    """A statement about a table with some of the columns."""
    kind = chance.choice(["UPDATE", "UPDATE", "UPDATE", "DELETE", "MERGE", "MERGE"])
    alias = chance.choice(["target", "target", "x", "T2", "[k]"])
    words = _Words(chance, alias, columns)
    if kind == "MERGE":
        return _merge(words)
    where = words.condition() if chance.random() < 0.85 else None
    if kind == "DELETE":
        return Statement(kind, alias, where=where)
    return Statement(kind, alias, words.assignments(0.3), where)


@dataclass(frozen=True)
class _Words:
    """Conditions and values about the rows of a table, by its alias.

    `is_other` says that it is the other one, or a query of its columns.
    """

    chance: random.Random
    alias: str
    columns: Sequence[str]
    is_other: bool = False

    def column(self, name: str) -> str:
        """A column."""
        return f"{self.alias}.{name}" if self.is_other else f"{self.alias}.[{name}]"

    def assignments(self, moves: float) -> dict[str, str]:
        """New values of some columns, those of a key among them in this part of cases."""
        may = [c for c in self.columns if c not in "kg" or self.chance.random() < moves]
        some = self.chance.sample(may, self.chance.choice([1, 1, 2, 3]))
        return {c: self.value(c) for c in some}

    def value(self, column: str) -> str:
        """A value that a column takes."""
        own = self.column(column)
        literal = self.chance.choice(_LITERALS.get(column, ["NULL"]))
        made = [literal, own, "NULL", f"coalesce({own}, {literal})",
                f"CASE WHEN {self.condition(1)} THEN {literal} ELSE {own} END"]  # fmt: skip
        if not self.is_other and column != "b":
            k = self.column("k")
            made += [f"(SELECT max(u.{column}) FROM u)",
                     f"(SELECT min(u.{column}) FROM u WHERE u.k = {k})",
                     f"(SELECT max(o.[{column}]) FROM [table] AS o WHERE o.[k] < {k})"]  # fmt: skip
        names = {c: self.column(c) for c in self.columns}
        made += [text.format(**names) for text in _OWN.get(column, [])]
        return self.chance.choice(made)

    def condition(self, depth: int = 2) -> str:
        """A condition."""
        chance = self.chance
        if depth and chance.random() < 0.4:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return chance.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        column = chance.choice(list(_LITERALS))
        own, literals = self.column(column), _LITERALS[column]
        one, other = chance.choices(literals, k=2)
        listed = ", ".join([one, other, *chance.choice([[], [], ["NULL"]])])
        no, sign = chance.choice(["", "NOT "]), chance.choice(["=", "<>", "<", "<=", ">", ">="])
        k, s = self.column("k"), self.column("s")
        made = [f"{own} {sign} {one}", f"{one} {sign} {own}", f"{own} {no}IN ({listed})",
                f"{own} IS {no}NULL", f"{own} {no}BETWEEN {one} AND {other}",
                f"{s} {no}LIKE {chance.choice(_PATTERNS)}", f"{k} {sign} {self.column('g')}",
                f"{k} {sign} 1.5", self.column("b"), chance.choice(["TRUE", "NULL", "1 = 1"]),
                f"{own} IS {no}DISTINCT FROM {one}"]  # fmt: skip
        if not self.is_other:
            made += [f"{k} {no}IN (SELECT u.k FROM u)", f"EXISTS (SELECT 1 FROM u WHERE u.k = {k})",
                     f"{self.column('n')} = (SELECT max(o.[n]) FROM [table] AS o)",
                     f"{no}EXISTS (SELECT 1 FROM [table] AS o WHERE o.[k] > {k})"]  # fmt: skip
        return chance.choice(made)


def _merge(words: _Words) -> Statement:
    chance = words.chance
    # A target that goes by the name of a column may be called "source" by now.
    alias = {"target": "source", "[k]": "s"}.get(words.alias) or chance.choice(["s", "source"])
    source = _Words(chance, alias, list(COLUMNS), is_other=True)
    whens: list[When] = []
    for _ in range(chance.choice([1, 2, 2, 3])):
        when = _when(words, source)
        if (when.kind, None) not in [(each.kind, each.condition) for each in whens]:
            whens.append(when)
    rows = _source(words)
    on = _on(words, source)
    return Statement("MERGE", words.alias, source=rows, source_alias=alias, on=on, whens=whens)


def _source(words: _Words) -> str:
    """Rows with all columns: the other table, some of it, a row for each of its k, or the table."""
    other = _Words(words.chance, "u", list(COLUMNS), is_other=True)
    folded = ", ".join(f"max(u.{c}) AS {c}" for c in COLUMNS if c not in "knb")
    own = ", ".join(f"o.[{c}] AS {c}" if c in words.columns else f"NULL AS {c}" for c in COLUMNS)
    each = f"SELECT u.k, {folded}, {{}} AS n, TRUE AS b FROM u GROUP BY u.k"
    return words.chance.choice([
        "SELECT * FROM u", f"SELECT * FROM u WHERE {other.condition(1)}", each.format("sum(u.n)"),
        each.format("CAST(min(u.n) AS BIGINT)"), f"SELECT {own} FROM [table] AS o",
    ])  # fmt: skip


def _on(words: _Words, source: _Words) -> str:
    own, other = words.column, source.column
    same = f"{own('k')} = {other('k')}"
    return words.chance.choice([
        same, f"{same} AND {other('g')} = {own('g')}", f"{same} AND {source.condition(1)}",
        f"{same} AND {words.condition(1)}", f"{own('s')} = {other('s')}", "FALSE",
        f"{own('k')} = {other('k')} + 1",
        f"{same} OR {own('n')} IS NULL AND {other('n')} IS NULL",
    ])  # fmt: skip


def _when(words: _Words, source: _Words) -> When:
    chance = words.chance
    kind = chance.choice(["MATCHED", "MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"])
    about = source if kind == "NOT MATCHED" else words
    if kind == "MATCHED" and chance.random() < 0.5:
        about = source
    condition = about.condition(1) if chance.random() < 0.6 else None
    if kind == "NOT MATCHED":
        more = chance.sample([c for c in words.columns if c not in "kg"], chance.choice([2, 6, 8]))
        given = {c: source.value(c) if chance.random() < 0.3 else source.column(c) for c in more}
        values = {"k": source.column("k"), "g": source.column("g"), **given}
        return When(kind, values, condition)
    if chance.random() < 0.4:
        return When(kind, None, condition)
    values = about.assignments(0.2) if kind != "MATCHED" or chance.random() < 0.6 else {}
    copied = chance.sample([c for c in words.columns if c not in "kg"], 2)
    values = {c: v for c, v in values.items() if c in words.columns}
    return When(kind, values or {c: source.column(c) for c in copied}, condition)
