"""SQL expressions over in-memory rows: their dialect, and the engine that computes them.

Expressions are those of Spark, with the type names and table names of Keytide. The parser is
imported only when there is SQL to parse.

The engine is DuckDB with one thread.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from keytide.errors import InvalidError, NotFoundError

# -- the SQL dialect, and its conversion to DuckDB -------------------------------------------------


if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect


PARSER_SLIPS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Internal errors of the parsing library for invalid input."""

_TOO_DEEP = (
    "a SQL expression is nested too deeply; write it with fewer parentheses, or compute a part of "
    "it in a column of its own"
)


@lru_cache(maxsize=1)
def keytide_dialect() -> type[Dialect]:
    """The dialect of `catalog.sql` within queries.

    TIMESTAMP has no time zone and TIMESTAMP_LTZ has the local one, as in the table format. Casts
    raise an error instead of returning NULL. `t$snapshots` is one name. As in the SQL standard, a
    doubled quote in a string is one quote, and a backslash is a plain character.
    """
    from sqlglot import TokenType
    from sqlglot.dialects.spark import Spark
    from sqlglot.generators.spark import SparkGenerator
    from sqlglot.parsers.spark import SparkParser

    class _Generator(SparkGenerator):
        """Keeps each WITH in place. At the top its names could hide others."""

        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar = set()

    class Keytide(Spark):
        """The dialect."""

        Generator = _Generator

        UNESCAPED_SEQUENCES: dict[str, str] = {}  # noqa: RUF012  # the base class declares it

        class Tokenizer(Spark.Tokenizer):
            """Adds type names that Spark lacks or interprets differently."""

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
            """Makes casts strict."""

            STRICT_CAST = True

    return Keytide


@lru_cache(maxsize=256)
def duckdb_expression(text: str, names: Sequence[str]) -> str:
    """Convert an expression over columns with these names to DuckDB.

    Column names are case-insensitive. Raises `InvalidError` for an expression that does not parse
    or that DuckDB cannot express, and `NotFoundError` for an unknown column.
    """
    from sqlglot import ErrorLevel, exp
    from sqlglot.errors import SqlglotError

    dialect = keytide_dialect()
    try:
        tokens = dialect().tokenize(text)
        [tree] = dialect().parser().parse_into(exp.Condition, tokens, text)
        if not isinstance(tree, exp.Expr) or tree.find(exp.Star):
            raise InvalidError(f"{text!r} is not a valid SQL expression")
        for column in tree.find_all(exp.Column):
            _name(column, text, names)
        spelt = tree.transform(duckdb_spelling)
        return spelt.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE, comments=False)
    except (SqlglotError, *PARSER_SLIPS) as error:
        if isinstance(error, (InvalidError, NotFoundError)):
            raise
        why = (str(error).splitlines() or ["it cannot be interpreted"])[0]
        raise InvalidError(f"{text!r} is not a valid SQL expression: {why}") from error
    except RecursionError as error:
        raise InvalidError(_TOO_DEEP) from error


def _name(column: exp.Column, text: str, names: Sequence[str]) -> None:
    """Write a column name as in its table. Names after it are fields of its value."""
    for part in column.parts:
        part.set("quoted", True)
    first = column.parts[0]
    alike = [name for name in names if name.lower() == first.name.lower()]
    if first.name not in alike:
        if len(alike) != 1:
            raise NotFoundError(
                f"{text!r} reads a column {first.name!r}, which does not exist; columns: "
                f"{', '.join(names)}"
            )
        first.set("this", alike[0])


def duckdb_spelling(node: exp.Expr) -> exp.Expr:
    """Convert what DuckDB writes differently:

    Flink's `MAP['k', v, ...]`, and a backslash in Spark's LIKE.
    """
    from sqlglot import exp

    if isinstance(node, exp.Bracket) and node.this.name.upper() == "MAP":
        values = node.expressions
        return exp.VarMap(
            keys=exp.array(*values[::2], copy=False), values=exp.array(*values[1::2], copy=False)
        )
    if isinstance(node, exp.Like) and (
        bool(node.expression.is_string) and "\\" in str(node.expression.this)
    ):
        escaped = isinstance(node.parent, exp.Escape)
        backslash = exp.Literal.string("\\")
        return node if escaped else exp.Escape(this=node.copy(), expression=backslash)
    return node


# -- the engine ------------------------------------------------------------------------------------


if TYPE_CHECKING:
    import duckdb


@lru_cache(maxsize=1)
def row_engine() -> duckdb.DuckDBPyConnection:
    """A connection without external access. Users create a cursor from it.

    With one thread, rows keep their order, and a Spark task has one core. Times are in UTC.
    """
    import duckdb  # imported here, because it takes long

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "enable_external_access": False,
        "temp_directory": "",  # otherwise a folder in the current one, for all to read
    }
    connection = duckdb.connect(config=settings)
    connection.execute("SET GLOBAL TimeZone = 'UTC'; SET lock_configuration = true")
    return connection


# Threads of Spark's gateway outlive the interpreter, and so do modules that they refer to. DuckDB
# would report a connection there as leaked.
atexit.register(row_engine.cache_clear)
