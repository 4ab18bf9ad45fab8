"""The dialect of SQL, and expressions of one row as DuckDB takes them.

Spark's expressions, with the type names and table names of Keytide. What parses them is loaded
where somebody has SQL to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from keytide.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect

__all__ = ["PARSER_SLIPS", "duckdb_expression", "duckdb_spelling", "keytide_dialect"]

PARSER_SLIPS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the library that parses raises over forms that no statement has."""


@lru_cache(maxsize=1)
def keytide_dialect() -> type[Dialect]:
    """What `catalog.sql` understands inside of queries.

    TIMESTAMP has no time zone and TIMESTAMP_LTZ has the local one, as in the table format; casts
    fail rather than give NULL; `t$snapshots` is one name; in texts a doubled quote is one quote and
    a backslash is a backslash, as in the standard.
    """
    from sqlglot import TokenType
    from sqlglot.dialects.spark import Spark
    from sqlglot.generators.spark import SparkGenerator
    from sqlglot.parsers.spark import SparkParser

    class _Generator(SparkGenerator):
        """Leaves each WITH where it stands: at the top its names would hide others."""

        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar = set()

    class Keytide(Spark):
        """The dialect."""

        Generator = _Generator

        UNESCAPED_SEQUENCES: dict[str, str] = {}  # noqa: RUF012  # the base class declares it

        class Tokenizer(Spark.Tokenizer):
            """Knows the type names that Spark lacks or understands otherwise; swallows nothing."""

            VAR_SINGLE_TOKENS: ClassVar = {"$"}
            STRING_ESCAPES: ClassVar = ["'"]
            COMMANDS: ClassVar = set()
            KEYWORDS: ClassVar = {
                **Spark.Tokenizer.KEYWORDS,
                "TIMESTAMP": TokenType.TIMESTAMPNTZ,
                "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
                "BYTES": TokenType.VARBINARY,
                "VARBINARY": TokenType.VARBINARY,
                "ROW": TokenType.STRUCT,
            }

        class Parser(SparkParser):
            """Casts are strict."""

            STRICT_CAST = True

    return Keytide


@lru_cache(maxsize=256)
def duckdb_expression(text: str, names: Sequence[str]) -> str:
    """An expression over columns of these names, in the words of DuckDB.

    Columns are found whatever the case of their letters. Raises `InvalidError` for what does not
    parse, or what DuckDB has no words for, `NotFoundError` for an unknown column.
    """
    from sqlglot import ErrorLevel, exp
    from sqlglot.errors import SqlglotError

    dialect = keytide_dialect()
    try:
        tokens = dialect().tokenize(text)
        [tree] = dialect().parser().parse_into(exp.Condition, tokens, text)
        if not isinstance(tree, exp.Expr) or tree.find(exp.Star):
            raise InvalidError(f"{text!r} is no expression of SQL")
        for column in tree.find_all(exp.Column):
            _name(column, text, names)
        spelt = tree.transform(duckdb_spelling)
        return spelt.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE, comments=False)
    except (SqlglotError, *PARSER_SLIPS) as error:
        if isinstance(error, (InvalidError, NotFoundError)):
            raise
        why = (str(error).splitlines() or ["it has no meaning that could be found"])[0]
        raise InvalidError(f"{text!r} is no expression of SQL: {why}") from error


def _name(column: exp.Column, text: str, names: Sequence[str]) -> None:
    """Write a column as its table does. What stands behind it is a member of its value."""
    for part in column.parts:
        part.set("quoted", True)
    first = column.parts[0]
    alike = [name for name in names if name.lower() == first.name.lower()]
    if first.name not in alike:
        if len(alike) != 1:
            raise NotFoundError(
                f"{text!r} reads a column {first.name!r}, and there is none; there are "
                f"{', '.join(names)}"
            )
        first.set("this", alike[0])


def duckdb_spelling(node: exp.Expr) -> exp.Expr:
    """What DuckDB writes differently: `MAP['k', v, ...]` of Flink, a backslash in LIKE of Spark."""
    from sqlglot import exp

    if isinstance(node, exp.Bracket) and node.this.name.upper() == "MAP":
        values = node.expressions
        return exp.VarMap(
            keys=exp.array(*values[::2], copy=False), values=exp.array(*values[1::2], copy=False)
        )
    if isinstance(node, exp.Like) and _has_backslash(node.expression):
        escaped = isinstance(node.parent, exp.Escape)
        backslash = exp.Literal.string("\\")
        return node if escaped else exp.Escape(this=node.copy(), expression=backslash)
    return node


def _has_backslash(pattern: Any) -> bool:
    return bool(pattern.is_string) and "\\" in str(pattern.this)
