"""Statements of every form, written in any spelling, are read as the values that they were made of.

A statement is drawn as a value and as the words that say it. Case, blanks, comments, quotes and
optional words are the spelling: they make no difference. A clause that the form does not have makes
one, or is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

import keytide as kt
from keytide.definition.schema_evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    First,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SetOption,
)
from keytide.sql.cursor import Keytide
from keytide.sql.grammar import parse_statements
from keytide.sql.statements import (
    AlterTable,
    Call,
    CreateTable,
    Delete,
    Describe,
    DropTable,
    Explain,
    Insert,
    Merge,
    Query,
    Rows,
    Show,
    Truncate,
    Update,
    When,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
Form = Callable[[Draw], tuple[Any, list[str]]]


class Exact(str):
    """A word that is spelled in one way only."""


def text_of(value: str) -> Exact:
    return Exact("'" + value.replace("'", "''") + "'")


def quoted(name: str) -> Exact:
    return Exact("`" + name.replace("`", "``") + "`")


# -- parts of statements ---------------------------------------------------------------------------

PLAIN = ["t", "Orders", "k2", "date", "row", "similar", "comment", "file", "primary", "ünï"]
ODD = ["SET", "row", "$row", "a.b", "a`b", "drop table t", "(", "it's", "--", "/*", "values", " "]
names = st.sampled_from(PLAIN).map(lambda n: (n, Exact(n))) | st.sampled_from(ODD).map(
    lambda n: (n, quoted(n))
)
texts = st.text("a'`\"\\-/*;, ü\n", max_size=4)
TYPES = [
    "INT",
    "BYTES",
    "DECIMAL(9, 2)",
    "VARCHAR(3) NOT NULL",
    "MULTISET<STRING>",
    "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "ROW<a INT, `b c` MAP<STRING, ARRAY<BIGINT NOT NULL>>>",
]
QUERIES = {
    "SELECT k FROM s": ["SELECT", "k", "FROM", "s"],
    "WITH w AS (SELECT 1 AS k) SELECT k FROM w ORDER BY k": [
        "WITH", "w", "AS", "(", "SELECT", "1", "AS", "k", ")",
        "SELECT", "k", "FROM", "w", Exact("ORDER  by"), "k",
    ],
    "VALUES (1, upper('a'))": ["VALUES", "(", "1", ",", "upper", "(", text_of("a"), ")", ")"],
}  # fmt: skip
CONDITIONS = {
    "k = 1": ["k", "=", "1"],
    "k IN (SELECT k FROM s)": ["k", "IN", "(", "SELECT", "k", "FROM", "s", ")"],
}
EXPRESSIONS = {
    "v + 1": ["v", "+", "1"],
    "'a'": [text_of("a")],
    "upper(v)": ["upper", "(", "v", ")"],
}


def one(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def maybe(draw: Draw, *words: str) -> list[str]:
    return list(words) if draw(st.booleans()) else []


def name_of(draw: Draw) -> tuple[str, list[str]]:
    name, word = draw(names)
    return name, [word]


def path_of(draw: Draw, longest: int = 2) -> tuple[tuple[str, ...], list[str]]:
    found = draw(st.lists(names, min_size=1, max_size=longest))
    return tuple(name for name, _ in found), commas([[word] for _, word in found], ".")


def table_of(draw: Draw) -> tuple[str, list[str]]:
    path, words = path_of(draw)
    return ".".join(path), words


def commas(items: list[list[str]], between: str = ",") -> list[str]:
    return [word for item in items for word in [between, *item]][1:]


def listed(items: list[list[str]]) -> list[str]:
    return ["(", *commas(items), ")"]


def part_of(draw: Draw, parts: Mapping[str, list[str]]) -> tuple[exp.Expr, list[str]]:
    text = draw(st.sampled_from(sorted(parts)))
    return Keytide().parse(text)[0], parts[text]


def query_of(draw: Draw) -> tuple[Query, list[str]]:
    tree, words = part_of(draw, QUERIES)
    return Query(tree, ""), words


def options_of(draw: Draw) -> tuple[dict[str, str], list[str]]:
    given = draw(st.dictionaries(texts, texts, min_size=1, max_size=2))
    plain = draw(st.dictionaries(st.sampled_from(["bucket", "a.b-c"]), st.just("3"), max_size=1))
    items = [[text_of(key), "=", text_of(value)] for key, value in given.items()]
    items += [[Exact(key), "=", value] for key, value in plain.items()]
    return {**given, **plain}, listed(items)


def column_of(draw: Draw, name: str) -> tuple[kt.Field, list[str]]:
    kind, comment, default = one(draw, *TYPES), one(draw, None, "it's"), one(draw, None, "1.50")
    words = [Exact(kind)]
    words += draw(
        st.permutations(
            [
                *([] if comment is None else [["COMMENT", text_of(comment)]]),
                *([] if default is None else [["DEFAULT", default]]),
            ]
        ).map(lambda items: [word for item in items for word in item])
    )
    return kt.Field(-1, name, kt.parse_sql_type(kind), comment, default), words


def partition_of(draw: Draw, *, whole: bool) -> tuple[dict[str, Any], list[str]]:
    found = draw(st.lists(names, min_size=1, max_size=2, unique_by=lambda n: n[0].lower()))
    given, items = {}, []
    for name, word in found:
        if whole or draw(st.booleans()):
            given[name] = exp.Literal.string("a,b")
            items.append([word, "=", text_of("a,b")])
        else:
            given[name] = None
            items.append([word])
    return given, ["PARTITION", *listed(items)]


def position_of(draw: Draw) -> tuple[Any, list[str]]:
    after, word = draw(names)
    return one(draw, (None, []), (First(), ["FIRST"]), (After(after), ["AFTER", word]))


# -- forms -----------------------------------------------------------------------------------------


def create(draw: Draw) -> tuple[Any, list[str]]:
    table, table_words = table_of(draw)
    exists_ok = maybe(draw, "IF", "NOT", "EXISTS")
    words = ["CREATE", "TABLE", *exists_ok, *table_words]
    columns, items = [], []
    for name, word in draw(st.lists(names, max_size=3)):
        column, rest = column_of(draw, name)
        columns.append(column)
        items.append([word, *rest])
    key = draw(st.lists(names, max_size=2))
    if key:
        constraint = maybe(draw, "CONSTRAINT", "pk")
        enforced = maybe(draw, "NOT", "ENFORCED")
        items.append([*constraint, "PRIMARY", "KEY", *listed([[w] for _, w in key]), *enforced])
    words += listed(items) if items else []
    clauses: list[list[str]] = [maybe(draw, "USING", one(draw, "keytide", "paimon"))]
    partition_by = draw(st.lists(names, max_size=2))
    if partition_by:
        clauses.append(["PARTITIONED", "BY", *listed([[w] for _, w in partition_by])])
    comment = draw(st.none() | texts)
    if comment is not None:
        clauses.append(["COMMENT", *maybe(draw, "="), text_of(comment)])
    options, option_words = options_of(draw) if draw(st.booleans()) else ({}, [])
    if options:
        clauses.append([one(draw, "WITH", "TBLPROPERTIES", "OPTIONS"), *option_words])
    like, like_words = table_of(draw) if draw(st.booleans()) else (None, [])
    clauses.append(["LIKE", *like_words] if like_words else [])
    words += [word for clause in draw(st.permutations(clauses)) for word in clause]
    query, query_words = query_of(draw) if draw(st.booleans()) else (None, [])
    words += ["AS", *query_words] if query is not None else []
    statement = CreateTable(
        table, tuple(columns), tuple(n for n, _ in key), tuple(n for n, _ in partition_by),
        options, comment, bool(exists_ok), like, query,
    )  # fmt: skip
    return statement, words


def insert(draw: Draw) -> tuple[Any, list[str]]:
    table, words = table_of(draw)
    overwrite = draw(st.booleans())
    words = ["INSERT", "OVERWRITE" if overwrite else "INTO", *maybe(draw, "TABLE"), *words]
    partition, partition_words = (
        partition_of(draw, whole=False) if draw(st.booleans()) else ({}, [])
    )
    columns = draw(st.lists(names, max_size=2))
    words += partition_words + (listed([[word] for _, word in columns]) if columns else [])
    rows, row_words = one(
        draw,
        query_of(draw),
        (Rows(pa.table({"col0": pa.array([1, -2], pa.int32()), "col1": ["it's", None]})),
         ["VALUES", "(", "1", ",", text_of("it's"), ")", ",", "(", "-", "2", ",", "NULL", ")"]),
    )  # fmt: skip
    statement = Insert(table, rows, tuple(n for n, _ in columns), partition, overwrite)
    return statement, words + row_words


def alter(draw: Draw) -> tuple[Any, list[str]]:
    table, words = table_of(draw)
    changes, change_words = one(draw, *ALTERS)(draw)
    return AlterTable(table, tuple(changes)), ["ALTER", "TABLE", *words, *change_words]


def column_word(draw: Draw) -> list[str]:
    return one(draw, [], ["COLUMN"], ["COLUMNS"])


def set_options(draw: Draw) -> tuple[Any, list[str]]:
    options, words = options_of(draw)
    return (
        [SetOption(key, value) for key, value in options.items()],
        ["SET", *maybe(draw, "TBLPROPERTIES"), *words],
    )


def reset_options(draw: Draw) -> tuple[Any, list[str]]:
    keys = draw(st.lists(texts, min_size=1, max_size=2))
    verb = one(draw, ["RESET"], ["UNSET", "TBLPROPERTIES"])
    words = [*verb, *maybe(draw, "IF", "EXISTS"), *listed([[text_of(key)] for key in keys])]
    return [RemoveOption(key) for key in keys], words


def add_columns(draw: Draw) -> tuple[Any, list[str]]:
    changes, items = [], []
    for _ in range(one(draw, 1, 2)):
        path, path_words = path_of(draw)
        column, words = column_of(draw, path[-1])
        position, position_words = position_of(draw)
        changes.append(
            AddColumn(path, column.type, column.description, position, column.default_value)
        )
        items.append([*path_words, *words, *position_words])
    bare = len(items) == 1 and draw(st.booleans())
    return changes, ["ADD", *column_word(draw), *(items[0] if bare else listed(items))]


def drop_columns(draw: Draw) -> tuple[Any, list[str]]:
    paths = [path_of(draw) for _ in range(one(draw, 1, 2))]
    items = [words for _, words in paths]
    bare = len(items) == 1 and draw(st.booleans())
    words = ["DROP", *one(draw, ["COLUMN"], ["COLUMNS"]), *(items[0] if bare else listed(items))]
    return [DropColumn(path) for path, _ in paths], words


def rename_column(draw: Draw) -> tuple[Any, list[str]]:
    (path, words), (name, word) = path_of(draw), draw(names)
    return [RenameColumn(path, name)], ["RENAME", "COLUMN", *words, "TO", word]


def redefine_column(draw: Draw) -> tuple[Any, list[str]]:
    (path, words), kind = path_of(draw), one(draw, *TYPES)
    (comment, comment_words) = one(draw, (None, []), ("it's", ["COMMENT", text_of("it's")]))
    position, position_words = position_of(draw)
    changes: list[Any] = [ChangeColumnType(path, kt.parse_sql_type(kind))]
    changes += [] if comment is None else [ChangeComment(comment, path)]
    changes += [] if position is None else [MoveColumn(path, position)]
    rest = [Exact(kind), *comment_words, *position_words]
    if draw(st.booleans()):
        return changes, ["MODIFY", *column_word(draw), *words, *rest]
    name, word = draw(names)
    changes += [] if name == path[-1] else [RenameColumn(path, name)]
    return changes, ["CHANGE", *column_word(draw), *words, word, *rest]


def alter_column(draw: Draw) -> tuple[Any, list[str]]:
    (path, words), (after, after_word) = path_of(draw), draw(names)
    change, change_words = one(
        draw,
        (ChangeColumnType(path, kt.parse_sql_type("BIGINT")), ["TYPE", "BIGINT"]),
        (ChangeColumnType(path, kt.parse_sql_type("BIGINT")), ["SET", "DATA", "TYPE", "BIGINT"]),
        (ChangeColumnNullability(path, nullable=True), ["DROP", "NOT", "NULL"]),
        (ChangeColumnNullability(path, nullable=False), ["SET", "NOT", "NULL"]),
        (ChangeComment("it's", path), ["COMMENT", text_of("it's")]),
        (MoveColumn(path, First()), ["FIRST"]),
        (MoveColumn(path, After(after)), ["AFTER", after_word]),
    )
    return [change], ["ALTER", "COLUMN", *words, *change_words]


ALTERS = [set_options, reset_options, add_columns, drop_columns, rename_column, redefine_column,
          alter_column]  # fmt: skip


def truncate(draw: Draw) -> tuple[Any, list[str]]:
    table, words = table_of(draw)
    partition, partition_words = partition_of(draw, whole=True)
    again, again_words = partition_of(draw, whole=True)
    exists = maybe(draw, "IF", "EXISTS")
    return one(
        draw,
        (Truncate(table), ["TRUNCATE", "TABLE", *words]),
        (Truncate(table, (partition,)), ["TRUNCATE", "TABLE", *words, *partition_words]),
        (
            Truncate(table, (partition, again)),
            ["ALTER", "TABLE", *words, "DROP", *exists, *partition_words, ",", *again_words],
        ),
    )


def drop(draw: Draw) -> tuple[Any, list[str]]:
    (table, words), exists = table_of(draw), maybe(draw, "IF", "EXISTS")
    return DropTable(table, bool(exists)), ["DROP", "TABLE", *exists, *words]


def show(draw: Draw) -> tuple[Any, list[str]]:
    (name, name_word), (table, words) = name_of(draw), table_of(draw)
    near = one(draw, "IN", "FROM")
    return one(
        draw,
        (Show("DATABASES"), ["SHOW", "DATABASES"]),
        (Show("TABLES"), ["SHOW", "TABLES"]),
        (
            Show("TABLES", name, "t%"),
            ["SHOW", "TABLES", near, *name_word, "LIKE", text_of("t%")],
        ),
        (Show("CREATE TABLE", table), ["SHOW", "CREATE", "TABLE", *words]),
        (Show("PARTITIONS", table), ["SHOW", "PARTITIONS", *words]),
        (Show("TBLPROPERTIES", table), ["SHOW", "TBLPROPERTIES", *words]),
        (Show("COLUMNS", table), ["SHOW", "COLUMNS", near, *words]),
    )


def describe(draw: Draw) -> tuple[Any, list[str]]:
    path, words = path_of(draw)
    extended = one(draw, [], ["EXTENDED"], ["FORMATTED"])
    start = [one(draw, "DESC", "DESCRIBE"), *maybe(draw, "TABLE"), *extended]
    return Describe(".".join(path), bool(extended)), [*start, *words]


def call(draw: Draw) -> tuple[Any, list[str]]:
    literals = st.sampled_from(
        [
            (None, ["NULL"]), (True, ["true"]), (-2, ["-", "2"]), (1.5, ["1.5"]),
            ("it's,)", [text_of("it's,)")]), (date(2026, 1, 31), ["DATE", text_of("2026-01-31")]),
        ]
    )  # fmt: skip
    values = draw(st.lists(literals, max_size=2))
    named = draw(st.dictionaries(st.sampled_from(PLAIN), literals, max_size=2))
    procedure, words = table_of(draw)
    items = [item for _, item in values]
    items += [[Exact(name), "=>", *item] for name, (_, item) in named.items()]
    by_name = {name: value for name, (value, _) in named.items()}
    statement = Call(procedure, tuple(value for value, _ in values), by_name)
    return statement, ["CALL", *words, *(listed(items) if items else ["(", ")"])]


def target_of(draw: Draw) -> tuple[str, exp.Table, list[str]]:
    path = draw(st.lists(st.sampled_from([*ODD, "t", "Orders"]), min_size=1, max_size=2))
    parts = [exp.to_identifier(name, quoted=True) for name in path]
    tree = exp.Table(this=parts[-1], db=parts[0] if len(parts) > 1 else None)
    words = commas([[quoted(name)] for name in path], ".")
    if draw(st.booleans()):
        tree = exp.alias_(tree, "x", table=True)
        words += [*maybe(draw, "AS"), "x"]
    return ".".join(path), tree, words


def rows_of(draw: Draw, target: exp.Table) -> tuple[Query, list[str]]:
    tree = exp.select("*").from_(target)
    if draw(st.booleans()):
        return Query(tree, ""), []
    condition, words = part_of(draw, CONDITIONS)
    return Query(tree.where(condition), ""), ["WHERE", *words]


def assignments_of(draw: Draw) -> tuple[dict[str, exp.Expr], list[str]]:
    columns = draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=2, unique_by=str.lower))
    values = [(name, *part_of(draw, EXPRESSIONS)) for name in columns]
    items = [[quoted(name), "=", *words] for name, _, words in values]
    return {name: value for name, value, _ in values}, commas(items)


def delete(draw: Draw) -> tuple[Any, list[str]]:
    table, tree, words = target_of(draw)
    query, where = rows_of(draw, tree)
    return Delete(table, query), ["DELETE", "FROM", *words, *where]


def update(draw: Draw) -> tuple[Any, list[str]]:
    table, tree, words = target_of(draw)
    assignments, set_words = assignments_of(draw)
    query, where = rows_of(draw, tree)
    return Update(table, query, assignments), ["UPDATE", *words, "SET", *set_words, *where]


def merge(draw: Draw) -> tuple[Any, list[str]]:
    table, tree, words = target_of(draw)
    assignments, set_words = assignments_of(draw)
    condition, condition_words = part_of(draw, CONDITIONS)
    values, value_words = part_of(draw, EXPRESSIONS)
    whens = draw(
        st.lists(
            st.sampled_from(
                [
                    ("", When("MATCHED", condition, "UPDATE", assignments),
                     ["MATCHED", "AND", *condition_words, "THEN", "UPDATE", "SET", *set_words]),
                    ("", When("MATCHED", condition, "DELETE"),
                     ["MATCHED", "AND", *condition_words, "THEN", "DELETE"]),
                    ("RIGHT", When("NOT MATCHED", condition, "INSERT"),
                     ["NOT", "MATCHED", "AND", *condition_words, "THEN", "INSERT", "*"]),
                    ("RIGHT", When("NOT MATCHED", condition, "INSERT", {"a.b": values}),
                     ["NOT", "MATCHED", "AND", *condition_words, "THEN",
                      "INSERT", "(", quoted("a.b"), ")", "VALUES", "(", *value_words, ")"]),
                    ("LEFT", When("NOT MATCHED BY SOURCE", condition, "DELETE"),
                     ["NOT", "MATCHED", "BY", "SOURCE", "AND", *condition_words, "THEN", "DELETE"]),
                ]
            ),
            min_size=1, max_size=3,
        )
    )  # fmt: skip
    sides = {side for side, _, _ in whens} - {""}
    side = "FULL" if len(sides) == 2 else next(iter(sides), "INNER")
    on = exp.EQ(this=exp.column("k"), expression=exp.Literal.number(1))
    source = exp.alias_(exp.to_table("src"), "s", table=True)
    pairs = exp.select("*").from_(tree).join(source, on=on, join_type=side)
    words = ["MERGE", "INTO", *words, "USING", "src", *maybe(draw, "AS"), "s", "ON", "k", "=", "1",
             *[word for _, _, when in whens for word in ["WHEN", *when]]]  # fmt: skip
    return Merge(table, Query(pairs, ""), tuple(when for _, when, _ in whens)), words


def explain(draw: Draw) -> tuple[Any, list[str]]:
    (statement, words), analyze = one(draw, delete, update, merge)(draw), maybe(draw, "ANALYZE")
    return Explain(statement, bool(analyze)), ["EXPLAIN", *analyze, *words]


def explain_query(draw: Draw) -> tuple[Any, list[str]]:
    query, words = query_of(draw)
    return Explain(query), ["EXPLAIN", *words]


FORMS = [query_of, create, insert, alter, truncate, drop, show, describe, call, delete, update,
         merge, explain, explain_query]  # fmt: skip
ids = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


# -- spelling --------------------------------------------------------------------------------------

GAPS = [" ", "\n", " \t ", " /* it's; a `comment` */ ", " -- it's; /* one\n"]


def spelled(draw: Draw, words: list[str]) -> str:
    cases = [str.lower, str.upper, str.title]
    chosen = [w if isinstance(w, Exact) else one(draw, *cases)(w) for w in words]
    return "".join(word + one(draw, *GAPS) for word in chosen)


def read(text: str) -> Any:
    [statement] = parse_statements(text)
    return compared(statement)


def compared(value: Any) -> Any:
    """A statement in a form that compares: trees as text in one case, without their places."""
    if isinstance(value, exp.Expr):
        return value.sql(dialect=Keytide, identify=True, comments=False).lower()
    if isinstance(value, Query):
        return "query", compared(value.tree)
    if isinstance(value, Rows):
        return value.rows
    if is_dataclass(value) and not isinstance(value, kt.Field):
        parts = {f.name: compared(getattr(value, f.name)) for f in fields(value)}
        return type(value).__name__, parts
    if isinstance(value, Mapping):
        return {name: compared(item) for name, item in value.items()}
    return [compared(item) for item in value] if isinstance(value, tuple | list) else value


@ids
@given(data=st.data())
def test_statement_in_any_spelling_is_read_as_it_was_meant(form: Form, data: st.DataObject) -> None:
    statement, words = form(data.draw)
    assert read(spelled(data.draw, words)) == compared(statement)


EXTRA = """
CASCADE; RESTRICT; PURGE; SYNC; FORCE; ONLY; FINAL; IGNORE; EXTERNAL; TEMPORARY; OR REPLACE; UNIQUE
CONCURRENTLY; LIMIT 1; RETURNING k; IF NOT EXISTS; USING u; BY NAME; DEFAULT VALUES
ON CONFLICT DO NOTHING; ON CLUSTER c; CLUSTERED BY (k) INTO 2 BUCKETS; STORED AS PARQUET; ENGINE = x
LOCATION 'x'; PARTITION (zz = 1); VERSION AS OF 1; TABLESAMPLE (1 ROWS); REFERENCES u (k)
CHECK (k > 1); GENERATED ALWAYS AS (1); AUTO_INCREMENT; COLLATE x; WITH NO DATA; ORDER BY k
ROW FORMAT SERDE 'x'; COPY GRANTS; WITH CHECK; INVISIBLE
"""
EXTRAS = [clause.strip() for clause in EXTRA.replace("\n", ";").split(";") if clause.strip()]


@pytest.mark.one_in(14)
@ids
@settings(max_examples=20)
@given(data=st.data())
def test_clause_of_another_form_is_refused_or_read_but_never_ignored(
    form: Form, data: st.DataObject
) -> None:
    statement, words = form(data.draw)
    place = data.draw(st.integers(1, len(words)))
    for extra in EXTRAS:
        text = " ".join([*words[:place], extra, *words[place:]])
        with suppress(kt.InvalidError):
            assert read(text) != compared(statement), text


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM t AS x WHERE k = 1",
        "UPDATE t AS x SET a = 1 , b = 2 WHERE k = 1",
        "MERGE INTO t AS x USING src AS s ON k = 1 WHEN MATCHED AND b = 1 THEN UPDATE SET a = 1 "
        "WHEN NOT MATCHED THEN INSERT ( k , a ) VALUES ( 1 , 2 )",
    ],
    ids=["delete", "update", "merge"],
)
def test_clause_of_another_form_counts_or_is_refused_at_every_place(statement: str) -> None:
    words, meant = statement.split(), read(statement)
    for place, extra in itertools.product(range(1, len(words) + 1), EXTRAS):
        text = " ".join([*words[:place], extra, *words[place:]])
        with suppress(kt.InvalidError):
            assert read(text) != meant, text
