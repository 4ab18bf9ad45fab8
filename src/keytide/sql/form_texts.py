"""Strings and values from a Python call, as parts of one SQL text.

Each string is parsed separately, so none of them can end a statement or start another one. They are
lines of one text, and errors point at positions in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import Token, TokenType, exp

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.sql.cursor import Cursor, error_at, parse_tree, tokenize
from keytide.sql.grammar import options_in_hints

__all__ = ["FormTexts"]


class FormTexts:
    """The parts of a statement.

    Methods raise `InvalidError` at the position that does not parse.
    """

    def __init__(self) -> None:
        self._text = ""
        self._tokens: list[Token] = []
        self._hints: dict[int, Mapping[str, str]] = {}

    @property
    def text(self) -> str:
        """All parts, each in lines of its own."""
        return self._text

    def cursor(self) -> Cursor:
        """A cursor before all parts, in the form that the grammar needs."""
        return Cursor(self._text, self._tokens, self._hints)

    def condition(self, text: str) -> exp.Expr:
        """A condition, or the expression of a value."""
        start, tokens = self._taken(text)
        tree = parse_tree(self._text, tokens, start, exp.Condition)
        if isinstance(tree, exp.Star):
            raise error_at(self._text, start, "expected an expression, found *")
        return tree

    def query(self, text: str) -> exp.Query:
        """A query."""
        start, tokens = self._taken(text)
        tree = parse_tree(self._text, tokens, start)
        if not isinstance(tree, exp.Query):
            raise error_at(
                self._text, start, "expected a query, such as SELECT * FROM the_table_of_changes"
            )
        return tree

    def values(self, given: Mapping[str, Any], call: str) -> dict[str, exp.Expr]:
        """The values of columns: strings are expressions, and anything else is a literal."""
        if not given:
            raise InvalidError(f"{call} sets no columns; give {{'column': value}}")
        return {
            name: self.condition(value if isinstance(value, str) else _value_text(value, name))
            for name, value in given.items()
        }

    def _taken(self, text: str) -> tuple[int, list[Token]]:
        """The position of a string among the others, and its tokens."""
        start = len(self._text) + 1 if self._text else 0
        self._text = f"{self._text}\n{text}" if self._text else text
        blank = "".join("\n" if c == "\n" else " " for c in self._text[:start])
        tokens = tokenize(blank + text)
        end = next((t for t in tokens if t.token_type == TokenType.SEMICOLON), None)
        if end is not None:
            raise error_at(self._text, int(end.start), "expected one expression; found its end")
        self._tokens += tokens
        self._hints |= options_in_hints(blank + text, tokens)
        return start, tokens


def _value_text(value: Any, column: str) -> str:
    """A Python value as SQL. Raises `InvalidError` for a value without an SQL literal."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    # A subclass of str is an expression too.
    with suppress(ArithmeticError, ValueError, TypeError):
        if isinstance(value, int | Decimal):
            return _number_text(Decimal(value))
        if isinstance(value, float):
            return f"CAST('{value!r}' AS DOUBLE)"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, datetime) and value.tzinfo is not None:
            instant = value.astimezone(timezone.utc)
            return f"CAST('{instant.isoformat(' ')}' AS TIMESTAMP_LTZ)"
        if isinstance(value, datetime):
            return f"CAST('{value.isoformat(' ')}' AS TIMESTAMP)"
        if isinstance(value, date):
            return f"CAST('{value.isoformat()}' AS DATE)"
        if isinstance(value, time) and value.tzinfo is None:
            return f"CAST('{value.isoformat()}' AS TIME)"
    raise InvalidError(
        f"column {column!r} is set to {shown(value)} of type {type(value).__name__}, for which "
        "SQL has no literal; give an expression as a string"
    )


def _number_text(value: Decimal) -> str:
    """A number. Raises `ValueError` for one that does not fit into a DECIMAL."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(value)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(exponent, 0), scale)
    if precision > _DIGITS_MAX:
        raise ValueError(value)
    if scale == 0 and precision < _LONG_DIGITS:
        return f"{value:f}"
    return f"CAST('{value:f}' AS DECIMAL({precision}, {scale}))"


_DIGITS_MAX = 38
_LONG_DIGITS = 19
