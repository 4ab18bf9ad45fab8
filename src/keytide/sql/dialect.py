"""The SQL dialect: text to tokens and trees, with errors that point at the position."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlglot import Token, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from keytide.base.row_dialect import PARSER_SLIPS, keytide_dialect
from keytide.errors import InvalidError
from keytide.sql.account import unread
from keytide.sql.idle_brackets import without_idle_brackets

__all__ = [
    "Keytide",
    "SparkText",
    "error_at",
    "is_plain_name",
    "parse_tree",
    "refusing_slips",
    "tokenize",
]

Keytide = keytide_dialect()


class SparkText(Spark):
    """The SQL generator for Spark."""

    Generator = Keytide.generator_class  # type: ignore[assignment]  # that of Spark with one word


def tokenize(text: str) -> list[Token]:
    """The tokens of a text. Raises `InvalidError` for text that is not SQL."""
    try:
        return list(Keytide().tokenize(text))
    except SqlglotError as error:
        raise InvalidError(
            f"the SQL text cannot be tokenized; look for an unclosed quote or comment: {error}"
        ) from error


def parse_tree(text: str, tokens: Sequence[Token], start: int, into: Any = None) -> exp.Expr:
    """The tree of some tokens of an SQL text. The tokens begin at position `start`.

    Positions in the tree and in errors refer to the whole text. Raises `InvalidError`, pointing at
    the position that does not parse.
    """
    try:
        tree = _parsed(text, tokens, into)
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        what = _plain(found.get("description") or str(error).splitlines()[0])
        message = f"the SQL text cannot be parsed here: {what}"
        raise error_at(text, _place(text, found, start), message) from error
    except SqlglotError as error:
        what = str(error).splitlines()[0]
        raise error_at(text, start, f"the SQL text cannot be parsed from here: {what}") from error
    except PARSER_SLIPS as error:
        # Internal errors of the parser, for input that is not a statement.
        raise error_at(text, start, "the SQL text cannot be parsed from here") from error
    if tree is None:
        raise error_at(text, start, "the SQL text cannot be parsed here: expected an expression")
    _refuse_unread(text, tokens, tree, into)
    return tree


def _parsed(text: str, tokens: Sequence[Token], into: Any) -> exp.Expr | None:
    parser, part = Keytide().parser(), without_idle_brackets(tokens)
    [tree] = parser.parse_into(into, part, text) if into else parser.parse(part, text)
    return tree


def _refuse_unread(text: str, tokens: Sequence[Token], tree: exp.Expr, into: Any) -> None:
    """Raise `InvalidError` for tokens that the parser consumed without using them in its tree."""

    def parse(other: Sequence[Token]) -> exp.Expr | None:
        try:
            return _parsed(text, other, into)
        except (SqlglotError, *PARSER_SLIPS):
            return None

    found = unread(tokens, tree, parse)
    if found is not None:
        index, why = found
        raise error_at(text, int(tokens[index].start), why)


def _place(text: str, found: Mapping[str, Any], start: int) -> int:
    """The start of the word that a parser error is about, `start` if it names none."""
    line, column = found.get("line"), found.get("col")
    if line is None or column is None:
        return start
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    # sqlglot counts to the end of the word that it highlights.
    return max(0, before + int(column) - len(found.get("highlight") or "x"))


@contextmanager
def refusing_slips() -> Iterator[None]:
    """A context for walking trees with sqlglot's own passes.

    For some invalid statements the parser creates trees that these passes cannot handle. Raises
    `InvalidError` for errors in them.
    """
    try:
        yield
    except (SqlglotError, *PARSER_SLIPS) as error:
        if not _is_of_parser(error):
            raise
        raise InvalidError(
            "a part of the statement cannot be interpreted; write it in a simpler form"
        ) from error


def _is_of_parser(error: BaseException) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("sqlglot", "sqlglotc")


def is_plain_name(text: str) -> bool:
    """Whether a word can be the database in a table name without quotes."""
    try:
        tree = parse_tree(query := f"SELECT a FROM {text}.b", tokenize(query), 0)
    except InvalidError:
        return False
    return [table.db for table in tree.find_all(exp.Table)] == [text]


def error_at(text: str, offset: int, message: str) -> InvalidError:
    """An error that shows the line of the text and points at the position."""
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
    """The parser's message with SQL words instead of names from its code."""
    for pattern, words in _OF_CODE.items():
        description = re.sub(pattern, words, description, flags=re.DOTALL)
    return description.rstrip(".")


_OF_CODE = {
    r"'SENTINEL'": "the end",
    r"<Token .*?, text: (.*?), line: .*>": r"'\1'",
    r"Required keyword: '.*' missing for <class '.*\.(\w+)'>": "\\1 is not complete",
}
