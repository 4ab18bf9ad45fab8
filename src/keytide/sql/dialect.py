"""The SQL dialect: Spark's expressions, with the type names and table names of Keytide.

TIMESTAMP has no time zone and TIMESTAMP_LTZ has the local one, as in the table format; casts
fail rather than give NULL; `t$snapshots` is one name; in texts a doubled quote is one quote and a
backslash is a backslash, as in the standard.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from keytide.errors import InvalidError

__all__ = ["Keytide", "error_at", "is_plain_name", "parse_expression", "refusing_slips", "tokenize"]

_SLIPS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the library that parses raises over forms that no statement has."""


class Keytide(Spark):
    """What `catalog.sql` understands inside of queries."""

    UNESCAPED_SEQUENCES: dict[str, str] = {}  # noqa: RUF012  # the base class declares it

    class Tokenizer(Spark.Tokenizer):
        """Knows the type names that Spark lacks or understands otherwise."""

        VAR_SINGLE_TOKENS: ClassVar = {"$"}
        STRING_ESCAPES: ClassVar = ["'"]
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


class Words(Keytide):
    """What `catalog.sql` understands around queries: words, none of them special."""

    class Tokenizer(Keytide.Tokenizer):
        """Keeps words that sqlglot joins apart, and statements that it swallows whole."""

        KEYWORDS: ClassVar = {
            word: token
            for word, token in Keytide.Tokenizer.KEYWORDS.items()
            if not word[0].isalpha()
        }
        COMMANDS: ClassVar = set()


def tokenize(text: str) -> list[Token]:
    """The tokens of a text. Raises `InvalidError` for what is no word and no symbol of SQL."""
    try:
        return list(Words().tokenize(text))
    except sqlglot.errors.SqlglotError as error:
        raise InvalidError(
            f"the SQL text cannot be split into words and symbols; look for a quote or a comment "
            f"that is not closed: {error}"
        ) from error


def parse_expression(text: str, start: int, end: int, into: Any = None) -> exp.Expr:
    """Parse the part of a SQL text from `start` up to `end`.

    Places in the tree and in errors count from the beginning of the whole text. Raises
    `InvalidError` pointing at the place that does not parse.
    """
    # Blanks instead of what comes before keep every place.
    blank = "".join("\n" if c == "\n" else " " for c in text[:start])
    try:
        tree: exp.Expr = sqlglot.parse_one(blank + text[start:end], dialect=Keytide, into=into)
        return tree
    except sqlglot.errors.ParseError as error:
        found = error.errors[0] if error.errors else {}
        # sqlglot counts to the end of the word that it highlights.
        place = _offset(text, found.get("line"), found.get("col"))
        place = place and max(0, place + 1 - len(found.get("highlight") or "x"))
        what = _plain(found.get("description") or str(error).splitlines()[0])
        place = start if place is None else place
        raise error_at(text, place, f"the SQL text does not parse here: {what}") from error
    except sqlglot.errors.SqlglotError as error:
        what = str(error).splitlines()[0]
        raise error_at(text, start, f"the SQL text does not parse from here on: {what}") from error
    except _SLIPS as error:
        # The parser's own slips, over forms that no statement has.
        raise error_at(text, start, "the SQL text does not parse from here on") from error


@contextmanager
def refusing_slips() -> Iterator[None]:
    """A block that walks trees by the parser's own passes.

    Of some texts that are none of SQL's the parser makes trees which these passes cannot walk.
    Raises `InvalidError` for what they trip over there.
    """
    try:
        yield
    except (SqlglotError, *_SLIPS) as error:
        if not _is_of_parser(error):
            raise
        raise InvalidError(
            "a part of the statement has no meaning that could be found; write it in a plainer form"
        ) from error


def _is_of_parser(error: BaseException) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("sqlglot", "sqlglotc")


def is_plain_name(text: str) -> bool:
    """Whether SQL takes a word for the database of a table without quotes around it."""
    try:
        tree = parse_expression(query := f"SELECT a FROM {text}.b", 0, len(query))
    except InvalidError:
        return False
    return [table.db for table in tree.find_all(exp.Table)] == [text]


def error_at(text: str, offset: int, message: str) -> InvalidError:
    """An error that shows the line of the text and points at the place."""
    offset = min(offset, len(text))
    line_start = text.rfind("\n", 0, offset) + 1
    line_end = text.find("\n", offset)
    line = text[line_start : None if line_end < 0 else line_end]
    number = text.count("\n", 0, offset) + 1
    pointer = " " * (offset - line_start) + "^"
    return InvalidError(
        f"line {number}, column {offset - line_start + 1}: {message}\n  {line}\n  {pointer}"
    )


def _plain(description: str) -> str:
    """What the parser says, in the words of SQL in place of those of its code."""
    for pattern, words in _OF_CODE.items():
        description = re.sub(pattern, words, description, flags=re.DOTALL)
    return description.rstrip(".")


_OF_CODE = {
    r"<Token .*?, text: (.*?), line: .*>": r"'\1'",
    r"Required keyword: '.*' missing for <class '.*\.(\w+)'>": r"\1 is not complete",
    r"No expression was parsed from '.*'": "expected an expression",
}


def _offset(text: str, line: int | None, column: int | None) -> int | None:
    if line is None or column is None:
        return None
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return max(0, start + column - 1)
