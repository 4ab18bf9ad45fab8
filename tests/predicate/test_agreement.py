"""An SQL condition that `where` reads as a predicate is the predicate that the SQL parser finds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import exp

from keytide.predicate.where import agreed_predicate
from keytide.sql.cursor import parse_tree, tokenize
from keytide.sql.pushdown import exact_predicate
from keytide.types import Field, parse_sql_type

TYPES = {
    "tiny": "TINYINT", "n": "INT", "big": "BIGINT", "f": "FLOAT", "x": "DOUBLE",
    "d": "DECIMAL(9, 2)", "wide": "DECIMAL(38, 10)", "b": "BOOLEAN", "c": "CHAR(3)", "v": "STRING",
    "raw": "BYTES", "day": "DATE", "at": "TIMESTAMP(3)", "fine": "TIMESTAMP(6)",
    "zoned": "TIMESTAMP_LTZ(6)", "t": "TIME(3)", "items": "ARRAY<INT>", "pair": "ROW<a INT>",
    "Case": "INT", "date": "DATE", "größe": "INT", "odd name": "INT",
}  # fmt: skip
FIELDS = [Field(i, name, parse_sql_type(text)) for i, (name, text) in enumerate(TYPES.items())]
BY_NAME = {field.name.lower(): field for field in FIELDS}

columns = st.sampled_from([*TYPES, "N", "case", "missing"]).flatmap(
    lambda name: st.sampled_from([name, f"`{name}`", f"({name})", f"target.{name}", f"-{name}"])
)
literals = st.sampled_from([
    "1", "-1", "+1", "- 7", "128", "1.5", "1.", ".5", "-0.0", "0.1", "1e3", "1L", "1_0", "12.345",
    "9223372036854775807", "9223372036854775808", "'a'", "'it''s'", "'a' 'b'", '"a"', "'a\\b'",
    "'1'", "' a '", "''", "r'a'", "X'00ff'", "TRUE", "false", "NULL", "'true'", "DATE '2020-01-02'",
    "'2020-01-02'", "DATE '2020-1-2'", "TIMESTAMP '2020-01-02 03:04:05'", "'2020-01-02 03:04:05'",
    "TIMESTAMP '2020-01-02 03:04:05.123456'", "TIMESTAMP_LTZ '2020-01-02 03:04:05+02:00'",
    "'2020-01-02 03:04:05+02:00'", "TIMESTAMP '2020-01-02'", "TIMESTAMP_NTZ '2020-01-02 03:04:05'",
    "'2020-02-30'", "TIME '01:02:03'", "(1)", "('a')", "CURRENT_DATE", "n", "1 + 1", "'a%'",
])  # fmt: skip
operators = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"])
blanks = st.sampled_from(["", " ", "\n", " /* c */ ", "\u00a0"])
nots = st.sampled_from(["", "NOT "])


@st.composite
def terms(draw: st.DrawFn) -> str:
    column, no, low, high = draw(columns), draw(nots), draw(literals), draw(literals)
    between = draw(blanks)
    many = ", ".join(draw(st.lists(literals, max_size=3)))
    return draw(st.sampled_from([
        f"{column}{between}{draw(operators)}{between}{low}", f"{low} {draw(operators)} {column}",
        f"{column} {no}IN ({many})", f"{column} {no}BETWEEN {low} AND {high}",
        f"{column} {no}LIKE {low}", f"{column} IS {no}NULL", f"{column} IS {no}TRUE",
        f"{column} is {no}false", column, f"abs({column}) = {low}",
        f"{column} IN (SELECT 1)", f"{column} -- c\n= {low}",
    ]))  # fmt: skip


conditions = st.recursive(
    terms(),
    lambda inner: st.one_of(
        st.builds(
            lambda parts, joint: joint.join(parts),
            st.lists(inner, min_size=2, max_size=3),
            st.sampled_from([" AND ", " OR ", "\nand "]),
        ),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"NOT {each}"),
    ),
    max_leaves=5,
)


@given(conditions)
@example("NOT n = 1 AND b OR v LIKE 'a%'")
@example("day BETWEEN '2020-01-02' AND DATE '2020-01-02' AND NOT (x > 1.5 OR v IN ('a', 'b'))")
def test_both_parsers_find_the_same_predicate(text: str) -> None:
    found = agreed_predicate(text, FIELDS)
    if found is None:
        return
    tree = parse_tree(text, tokenize(text), 0, exp.Condition)
    assert repr(exact_predicate(tree, BY_NAME)) == repr(found)


@pytest.mark.parametrize(
    "text",
    ["n = 1", "`odd name` > -1", "v = 'it''s'", "b", "NOT b", "v LIKE 'a%'", "d >= 1.25", "x < .5",
     "n IN (1, 2) AND day = DATE '2020-01-02'", "at < '2020-01-02 03:04:05'", "date = '2020-01-02'",
     "zoned = '2020-01-02 03:04:05+02:00'", "items IS NULL OR c IS NOT NULL"],
)  # fmt: skip
def test_what_all_engines_agree_on_needs_none(text: str) -> None:
    is_nested = "items" in text
    assert (agreed_predicate(text, FIELDS) is None) == is_nested


@pytest.mark.parametrize(
    "text",
    ["c = 'a'", "n = '1'", "x = 1e3", "v = \"a\"", "v LIKE 'a\\%'", "at IN ('2020-01-02')",
     "abs(n) = 1", "n = big", "N = 1", "n IN ()", "n = NULL", "target.n = 1", "b > FALSE", ""],
)  # fmt: skip
def test_the_rest_is_left_to_sql(text: str) -> None:
    assert agreed_predicate(text, FIELDS) is None


@pytest.mark.parametrize("word", ["current_date", "CURRENT_USER", "session_user"])
def test_function_without_brackets_is_no_column(word: str) -> None:
    field = Field(0, word, parse_sql_type("DATE"))
    assert agreed_predicate(f"{word} = DATE '2020-01-02'", [field]) is None


def test_names_of_statements_are_refused_by_them() -> None:
    fields = [Field(0, "k", parse_sql_type("INT")), Field(1, "$row", parse_sql_type("INT"))]
    assert agreed_predicate("k = 1", fields) is None
