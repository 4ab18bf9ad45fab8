"""SQL text: mutated statements are run or refused, and queries give the rows that DuckDB gives.

Valid statements come from the documentation and the tests; what the grammar of a mutation makes
of them is anybody's guess, but it ends, and with nothing but Keytide's errors.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from fuzz_case import Case, Refused, brief
from fuzz_values import TEXTS, mutated

import keytide as kt

__all__ = ["run", "run_queries"]

_ROOT = Path(__file__).resolve().parents[2]
_STATEMENT = re.compile(
    r"^\s*(SELECT|WITH|VALUES|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|TRUNCATE|SHOW|DESCRIBE|DESC"
    r"|EXPLAIN|CALL)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\s+|'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|\w+|<>|<=|>=|\|\||.", re.DOTALL)

_LITERAL = re.compile(r'"""(.*?)"""|"([^"\\\n]{8,})"', re.DOTALL)

_OWN = """
SELECT * FROM t; SELECT k, v FROM t WHERE k IN (1, 2) AND v LIKE 'a%' ORDER BY k LIMIT 1;
SELECT count(*), sum(n), max(d) FROM t GROUP BY v HAVING count(*) > 0;
SELECT a.k, b.v FROM t a JOIN p b ON a.k = b.k LEFT JOIN t c ON c.k = a.n;
WITH x AS (SELECT k FROM t) SELECT * FROM x UNION ALL SELECT k FROM p;
SELECT * FROM t VERSION AS OF 1; SELECT * FROM t$snapshots; SELECT * FROM `p$files`;
SELECT * FROM t TIMESTAMP AS OF '2100-01-01 12:00:00';
SELECT * FROM t /*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE d < DATE '2024-01-01';
SELECT v, n, CAST(n AS STRING), CASE WHEN k > 1 THEN 'x' ELSE NULL END FROM t WHERE NOT k = 1;
SELECT ARRAY[1, 2], MAP['a', 1], ROW(1, 'a'), DECIMAL '1.50', X'FF', 1e3, TRUE, NULL, -1;
SELECT row_number() OVER (PARTITION BY v ORDER BY k) FROM t; VALUES (1, 'a'), (2, NULL);
SELECT * FROM t WHERE EXISTS (SELECT 1 FROM p WHERE p.k = t.k) AND n BETWEEN -1 AND 1e2;
INSERT INTO t VALUES (7, 'x', 1.5, DATE '2024-01-01'); INSERT INTO t (k, v) SELECT k, v FROM p;
INSERT OVERWRITE p PARTITION (p = 'a') SELECT 1, 'v';
INSERT INTO p PARTITION (p = 'b') VALUES (3, 'c');
UPDATE t SET v = 'y', n = n + 1 WHERE k = 1; DELETE FROM t WHERE v IS NULL OR k > 5; DELETE FROM p;
CREATE TABLE n (k INT, v STRING COMMENT 'c', PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '2');
CREATE TABLE IF NOT EXISTS q (k BIGINT NOT NULL, p STRING, r ROW<a INT, b ARRAY<STRING>>,
  PRIMARY KEY (k, p) NOT ENFORCED) COMMENT 'x' PARTITIONED BY (p) WITH ('sequence.field' = 'k');
CREATE TABLE l LIKE t WITH ('bucket' = '3');
CREATE TABLE c (PRIMARY KEY (k) NOT ENFORCED) AS SELECT * FROM t;
ALTER TABLE t ADD COLUMN z INT FIRST; ALTER TABLE t DROP COLUMN v;
ALTER TABLE t RENAME COLUMN v TO w;
ALTER TABLE t ALTER COLUMN n TYPE DOUBLE; ALTER TABLE t SET ('read.memory' = '1 mb');
ALTER TABLE t RESET ('bucket');
ALTER TABLE t MODIFY COLUMN v STRING COMMENT 'x' AFTER k; DROP TABLE IF EXISTS p; TRUNCATE TABLE t;
SHOW TABLES; SHOW TABLES IN default LIKE 't%'; SHOW DATABASES; SHOW CREATE TABLE t;
SHOW COLUMNS FROM t;
SHOW TBLPROPERTIES t; SHOW PARTITIONS p; DESCRIBE EXTENDED t; EXPLAIN SELECT * FROM t WHERE k = 1;
CALL sys.why('t', 1)
"""


@lru_cache(maxsize=1)
def statements() -> tuple[str, ...]:
    """Valid statements, those of the documentation and the tests among them."""
    texts = [_OWN]
    blocks = re.findall(r"```sql\n(.*?)```", (_ROOT / "docs/sql.md").read_text(), re.DOTALL)
    texts += [re.sub(r"--.*", "", block) for block in blocks]
    for file in sorted((_ROOT / "tests/sql").glob("test_*.py")):
        texts += [long or short for long, short in _LITERAL.findall(file.read_text())]
    found = (each.strip() for text in texts for each in text.split(";"))
    return tuple(dict.fromkeys(each for each in found if _STATEMENT.match(each)))


def run(case: Case) -> None:
    """A lake with two tables, and some texts."""
    lake = _lake(case)
    for _ in range(16):
        text = _text(case.chance)
        case.attempt(f"sql {text!r}", lambda text=text: _carried_out(lake, text))
    for name in lake.tables():
        case.attempt(f"scan of {name}", lambda name=name: lake.table(name).scan().to_arrow())


def _carried_out(lake: kt.Lake, text: str) -> None:
    result = lake.sql(text)
    result.to_arrow()
    assert result.row_count >= 0
    repr(result)


def _lake(case: Case) -> kt.Lake:
    lake = case.lake()
    lake.sql(
        """
        CREATE TABLE t (k INT, v STRING, n DOUBLE, d DATE, PRIMARY KEY (k) NOT ENFORCED);
        CREATE TABLE p (k INT, p STRING, v STRING, PRIMARY KEY (k, p) NOT ENFORCED)
          PARTITIONED BY (p);
        INSERT INTO t VALUES (1, 'a', 1.5, DATE '2024-01-01'), (2, NULL, NULL, NULL);
        INSERT INTO p VALUES (1, 'a', 'x'), (2, 'b', 'y')
        """
    )
    return lake


def _text(chance: random.Random) -> str:
    text = chance.choice(statements())
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        text = chance.choice(_MUTATIONS)(text, chance)
    return text[:20_000]


def _dropped(text: str, chance: random.Random) -> str:
    tokens = _TOKEN.findall(text)
    del tokens[(i := chance.randrange(len(tokens) or 1)) : i + chance.choice([1, 1, 2, 5])]
    return "".join(tokens)


def _doubled(text: str, chance: random.Random) -> str:
    tokens = _TOKEN.findall(text) or [""]
    i = chance.randrange(len(tokens))
    return "".join([*tokens[:i], *tokens[i : i + 3] * chance.choice([2, 3]), *tokens[i + 3 :]])


def _swapped(text: str, chance: random.Random) -> str:
    tokens = _TOKEN.findall(text) or [""]
    i, j = chance.randrange(len(tokens)), chance.randrange(len(tokens))
    tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


def _spliced(text: str, chance: random.Random) -> str:
    mine, other = _TOKEN.findall(text) or [""], _TOKEN.findall(chance.choice(statements()))
    start = chance.randrange(len(other))
    i = chance.randrange(len(mine))
    part = other[start : start + chance.choice([1, 2, 5, 20])]
    return "".join([*mine[:i], " ", *part, " ", *mine[i + chance.choice([0, 1, 3]) :]])


def _odd_token(text: str, chance: random.Random) -> str:
    tokens = _TOKEN.findall(text) or [""]
    odd = chance.choice([*TEXTS, "0x1", "1e400", "''", "()", "[]", "{}", "::", "?", ":x", "--",
                         "/*", "1.5E", ".5", "9" * 50, "@@", "$1", "NULL"])  # fmt: skip
    tokens[chance.randrange(len(tokens))] = f" {odd} "
    return "".join(tokens)


def _nested(text: str, chance: random.Random) -> str:
    tokens = _TOKEN.findall(text) or [""]
    i = chance.randrange(len(tokens))
    depth = chance.choice([2, 20, 300, 3_000])
    around = chance.choice([("(", ")"), ("NOT ", ""), ("-", ""), ("[", "]"), ("ARRAY<", ">")])
    tokens[i] = around[0] * depth + tokens[i] + around[1] * depth
    return "".join(tokens)


def _long_condition(text: str, chance: random.Random) -> str:
    count = chance.choice([3, 50, 400])
    word = chance.choice([" OR ", " AND "])
    return f"SELECT * FROM t WHERE {word.join(f'k = {i}' for i in range(count))}"


_MUTATIONS: list[Callable[[str, random.Random], str]] = [
    _dropped, _doubled, _swapped, _spliced, _odd_token, _nested, mutated, _dropped, _spliced,
    _long_condition, lambda text, chance: f"{text}; {chance.choice(statements())}",
    lambda text, chance: text.upper(), lambda text, chance: text.swapcase(),
]  # fmt: skip


# -- queries ---------------------------------------------------------------------------------------

_COLUMNS = {
    "k": pa.int32(),
    "g": pa.int64(),
    "n": pa.int64(),
    "x": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "d": pa.date32(),
    "m": pa.decimal128(10, 2),
}
_SCHEMA = pa.schema(list(_COLUMNS.items()))
_LITERALS: dict[str, list[str]] = {
    "k": ["-1", "0", "1", "3", "7", "100"],
    "g": ["0", "1", "2"],
    "n": ["-5", "0", "2", "9000000000"],
    "x": ["-1.5", "0.5", "2.0", "CAST('inf' AS DOUBLE)"],
    "s": ["''", "'a'", "'ab'", "'b'", "'ü'", "'A'", "'it''s'"],
    "b": ["TRUE", "FALSE"],
    "d": ["DATE '1969-12-31'", "DATE '2024-02-29'"],
    "m": ["-0.05", "1.50", "99999.99"],
}
_VALUES: dict[str, list[Any]] = {
    "g": [0, 1, 2],
    "n": [-5, 0, 2, 3, 9_000_000_000, None],
    "x": [-1.5, 0.0, 0.5, 2.0, float("inf"), None],
    "s": ["", "a", "ab", "abc", "b", "A", "ü", "it's", "a%b", None],
    "b": [True, False, None],
    "d": [-1, 0, 19_782, None],
    "m": [0, 1, -1, None],
}


def run_queries(case: Case) -> None:
    """Tables that were written in some steps, and queries over them."""
    lake = case.lake()
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("t", "u"):
            connection.register(name, _filled(case, lake, name))
        for _ in range(6):
            _compare(case, lake, connection, _query(case.chance))
    finally:
        connection.close()


def _filled(case: Case, lake: kt.Lake, name: str) -> pa.Table:
    """Fill a table by some writes, and return the rows that it has to show."""
    chance = case.chance
    partitioned = chance.random() < 0.4
    table = lake.create_table(
        name, _SCHEMA, ["k", "g"] if partitioned else ["k"], ["g"] if partitioned else [],
        options={"bucket": chance.choice("124")},
    )  # fmt: skip
    rows: dict[Any, dict[str, Any]] = {}
    for _ in range(chance.choice([0, 1, 2, 4])):
        batch = [_row(chance) for _ in range(chance.choice([1, 5, 20]))]
        kinds = [chance.choice(["+I", "+I", "+U", "-D"]) for _ in batch]
        written = pa.Table.from_pylist(batch, _SCHEMA).append_column("_row_kind", pa.array(kinds))
        table.write(written)
        for row, kind in zip(batch, kinds, strict=True):
            key = (row["k"], row["g"]) if partitioned else row["k"]
            rows.pop(key, None)
            if kind != "-D":
                rows[key] = row
    return pa.Table.from_pylist(list(rows.values()), _SCHEMA)


def _row(chance: random.Random) -> dict[str, Any]:
    return {
        "k": chance.choice([-1, 0, 1, 2, 3, 4, 7]),
        **{n: chance.choice(v) for n, v in _VALUES.items()},
    }


def _query(chance: random.Random) -> str:
    kind = chance.choice(["plain", "plain", "plain", "group", "join", "nested", "union", "ordered"])
    where = f" WHERE {_condition(chance, 't')}" if chance.random() < 0.85 else ""
    if kind == "plain":
        items = ", ".join(_scalar(chance, "t") for _ in range(chance.choice([1, 2, 3])))
        return f"SELECT {items if chance.random() < 0.7 else '*'} FROM t{where}"
    if kind == "group":
        by = chance.choice(["t.g", "t.s", "t.b", "t.g, t.b"])
        having = chance.choice(["", "", " HAVING count(*) > 1"])
        folds = "count(*), count(t.n), sum(t.n), min(t.s), max(t.d), sum(t.m), min(t.x)"
        return f"SELECT {by}, {folds} FROM t{where} GROUP BY {by}{having}"
    if kind == "join":
        how = chance.choice(["JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"])
        on = chance.choice(["t.k = u.k", "t.k = u.k AND t.g = u.g", "t.s = u.s", "t.n = u.k"])
        more = f" AND {_condition(chance, 'u')}" if where and chance.random() < 0.5 else ""
        return f"SELECT t.k, u.k, t.s, u.n FROM t {how} u ON {on}{where}{more}"
    if kind == "nested":
        inner = f"SELECT u.k FROM u WHERE {_condition(chance, 'u')}"
        return chance.choice(
            [
                f"SELECT * FROM t WHERE t.k {chance.choice(['IN', 'NOT IN'])} ({inner})",
                f"SELECT * FROM (SELECT t.k, t.n FROM t{where}) AS t WHERE t.k > 0",
                f"WITH w AS ({inner}) SELECT t.k FROM t JOIN w ON w.k = t.k{where}",
                f"SELECT * FROM t WHERE EXISTS ({inner} AND u.k = t.k)",
            ]
        )  # fmt: skip
    if kind == "union":
        word = chance.choice(["UNION ALL", "UNION", "INTERSECT", "EXCEPT"])
        return f"SELECT t.k, t.s FROM t{where} {word} SELECT u.k, u.s FROM u"
    return f"SELECT t.k, t.g FROM t{where} ORDER BY t.k, t.g LIMIT {chance.choice([0, 1, 3])}"


def _scalar(chance: random.Random, table: str) -> str:
    name = chance.choice(list(_COLUMNS))
    column = f"{table}.{name}"
    return chance.choice(
        [
            lambda: column,
            lambda: column,
            lambda: f"coalesce({column}, {chance.choice(_LITERALS[name])})",
            lambda: f"CASE WHEN {_condition(chance, table, 0)} THEN {column} END",
            lambda: f"{table}.k + {table}.n",
            lambda: f"{table}.n * 2 - {table}.k",
            lambda: f"upper({table}.s)",
            lambda: f"length({table}.s)",
            lambda: f"{table}.s || 'x'",
            lambda: f"({_condition(chance, table, 0)})",
        ]
    )()


def _condition(chance: random.Random, table: str, depth: int = 2) -> str:
    if depth and chance.random() < 0.5:
        left, right = _condition(chance, table, depth - 1), _condition(chance, table, depth - 1)
        return chance.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
    name = chance.choice(list(_COLUMNS))
    column = f"{table}.{name}"
    literals = _LITERALS[name]
    sign = chance.choice(["=", "<>", "<", "<=", ">", ">="])
    return chance.choice(
        [
            lambda: f"{column} {sign} {chance.choice(literals)}",
            lambda: f"{chance.choice(literals)} {sign} {column}",
            lambda: f"{column} IN ({', '.join(chance.choices(literals, k=2))})",
            lambda: f"{column} NOT IN ({', '.join(chance.choices(literals, k=2))})",
            lambda: f"{column} IS {chance.choice(['', 'NOT '])}NULL",
            lambda: f"{column} BETWEEN {chance.choice(literals)} AND {chance.choice(literals)}",
            lambda: f"{table}.s LIKE {chance.choice(PATTERNS)}",
            lambda: f"{table}.k {sign} {table}.g",
            lambda: f"{table}.k {sign} 1.5",
            lambda: f"{table}.b",
        ]
    )()  # fmt: skip


PATTERNS = ["'a%'", "'%b'", "'_'", "'a_c'", "''", "'%'", "'A%'", "'%''%'", "'ü'"]


def _compare(case: Case, lake: kt.Lake, connection: Any, text: str) -> None:
    try:
        wanted = connection.sql(text).to_arrow_table()
    except duckdb.Error:
        case.count("refused by DuckDB")
        return
    found = case.attempt(f"query {text!r}", lambda: lake.sql(text).to_arrow())
    if isinstance(found, Refused):
        case.note("rows", "a query is refused", f"{text}: {brief(str(found.error))}")
    elif (a := _multiset(found)) != (b := _multiset(wanted)):
        more = [row for row in a if row not in b][:3]
        less = [row for row in b if row not in a][:3]
        case.note(
            "rows", "a query", f"{text}: {len(a)} rows, not {len(b)}; has {more}, lacks {less}"
        )


def _multiset(rows: pa.Table) -> list[str]:
    columns = [column.to_pylist() for column in rows.columns]
    return sorted(repr(tuple(map(_plain, row))) for row in zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return Decimal(value).normalize() if is_whole or isinstance(value, Decimal) else value
