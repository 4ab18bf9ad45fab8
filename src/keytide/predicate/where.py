"""Parses conditions, given as strings, into predicates.

The grammar is smaller than that of SQL, and each condition has exactly one meaning:

    condition   = term, or conditions joined by NOT, AND, OR and parentheses
    term        = column operator literal | literal operator column
                | column [NOT] IN ([literal, ...]) | column [NOT] BETWEEN literal AND literal
                | column [NOT] LIKE 'pattern' | column IS [NOT] NULL | column IS [NOT] TRUE | FALSE
                | column                                                        (a BOOLEAN)
    operator    = '=' | '==' | '!=' | '<>' | '<' | '<=' | '>' | '>='
    literal     = 1.5e3 | 'text' | "text" | TRUE | FALSE | X'00ff'
                | DATE '...' | TIME '...' | TIMESTAMP '...' | TIMESTAMP_LTZ '...' | NULL
    column      = name | `name`

A literal is read as a value of its column's type (`literals`). A string is in single or double
quotes, and a doubled quote means one quote. A backslash has no special meaning, except in a LIKE
pattern, where it escapes the next character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from keytide.errors import InvalidError
from keytide.predicate.columns import field_of
from keytide.predicate.literals import (
    NUMBER,
    Literal,
    between,
    comparison,
    equalities,
    flag,
    known_values,
)
from keytide.predicate.predicate import (
    DEPTH_MAX,
    IsNull,
    Like,
    Predicate,
    conjunction,
    disjunction,
    negation,
)
from keytide.types import Field

__all__ = ["parse_where"]


def parse_where(text: str, fields: Sequence[Field], table: str) -> Predicate:
    """Parse a condition over a table's columns, such as `dt = '2026-01-01' and qty > 3`.

    Time and memory are linear in the length of the string. Raises `InvalidError`, with the
    position, for an unknown token or a literal that does not fit its column, and `NotFoundError`
    for an unknown column.
    """
    if not isinstance(text, str):
        raise InvalidError(
            f'table {table}: the condition is {text!r}; expected a string such as "id = 1"'
        )
    return _Parser({f.name: f for f in fields}, table, text, _tokens(text)).predicate()


# -- tokens --------------------------------------------------------------------------------------

_TOKEN = re.compile(
    rf"""\s+
    |(?P<BYTES>[xX]'[^']*')
    |(?P<TEXT>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<QUOTED>`(?:[^`]|``)*`)
    |(?P<NUMBER>{NUMBER}(?!\w))
    |(?P<WORD>[^\W\d]\w*)
    |(?P<SIGN><=>|<=|>=|<>|!=|==|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    form: str
    text: str
    start: int

    @property
    def word(self) -> str:
        """The keyword or sign of this token, or an empty string."""
        return self.text.upper() if self.form in ("WORD", "SIGN") else ""


def _tokens(text: str) -> list[_Token]:
    found = [
        _Token(match.lastgroup, match.group(), match.start())
        for match in _TOKEN.finditer(text)
        if match.lastgroup is not None
    ]
    return [*found, _Token("END", "", len(text))]


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


# -- the grammar ---------------------------------------------------------------------------------

_FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPERATORS = {**{name: name for name in _FLIPPED}, "==": "=", "<>": "!="}
_TYPED = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_RESERVED = ("AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "NULL", "TRUE", "FALSE")


@dataclass
class _Open:
    """A condition that is being parsed, inside a parenthesis."""

    ors: list[Predicate] = field(default_factory=list)
    ands: list[Predicate] = field(default_factory=list)
    is_negated: bool = False

    def add(self, term: Predicate) -> None:
        self.ands.append(negation(term) if self.is_negated else term)
        self.is_negated = False

    def close_and(self) -> None:
        term = conjunction(self.ands)
        assert term is not None
        self.ors.append(term)
        self.ands = []

    def result(self) -> Predicate:
        self.close_and()
        return disjunction(self.ors)


@dataclass
class _Parser:
    fields: dict[str, Field]
    table: str
    text: str
    tokens: list[_Token]
    place: int = 0

    @property
    def ahead(self) -> _Token:
        return self.tokens[self.place]

    def accept(self, word: str) -> bool:
        if self.tokens[self.place].word != word:
            return False
        self.place += 1
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail(f"expected {word}")

    def predicate(self) -> Predicate:
        """The whole condition. An explicit stack, not Python's, holds what is open."""
        open_ = [_Open()]
        while True:
            self._term(open_)
            while self.accept(")"):
                if len(open_) == 1:
                    self.place -= 1
                    self.fail("there is no open parenthesis")
                inner = open_.pop().result()
                open_[-1].add(inner)
            if self.accept("OR"):
                open_[-1].close_and()
            elif not self.accept("AND"):
                break
        if len(open_) > 1:
            self.fail("expected ), AND or OR")
        if self.ahead.form != "END":
            self.fail("expected AND, OR or the end of the condition")
        return open_[0].result()

    def _term(self, open_: list[_Open]) -> None:
        """One term, with the parentheses and negations before it."""
        while True:
            if self.accept("NOT"):
                open_[-1].is_negated = not open_[-1].is_negated
            elif self.ahead.word == "(" and not self._is_operand_in_parentheses():
                self.place += 1
                if len(open_) > DEPTH_MAX:
                    self.fail(f"more than {DEPTH_MAX} open parentheses")
                open_.append(_Open())
            else:
                break
        open_[-1].add(self._comparison())

    def _is_operand_in_parentheses(self) -> bool:
        """Whether `(column)` or `(literal)` comes next."""
        for width in (1, 2):
            end = self.place + 1 + width
            if end < len(self.tokens) and self.tokens[end].word == ")":
                inside = self.tokens[self.place + 1 : end]
                return all(token.word not in (*_OPERATORS, "(", "NOT") for token in inside)
        return False

    def _comparison(self) -> Predicate:
        start = self.place
        literal = self._literal()
        if literal is not None:
            operator = self._operator()
            return self._compared(self._column(), _FLIPPED[operator], literal, start)
        column = self._column()
        if self.accept("IS"):
            return self._is(column, start)
        is_negated = self.accept("NOT")
        if self.accept("IN"):
            found = self._in(column, start)
        elif self.accept("BETWEEN"):
            found = self._between(column, start)
        elif self.accept("LIKE"):
            found = self._like(column)
        elif is_negated:
            self.fail("expected IN, BETWEEN or LIKE")
        elif self.ahead.word in _OPERATORS:
            operator = self._operator()
            found = self._compared(column, operator, self._expected_literal(), start)
        elif self.ahead.word in ("", "AND", "OR", ")"):
            return self._compared(column, "=", Literal("BOOLEAN", "TRUE"), start)
        else:
            self.fail("expected a comparison")
        return negation(found) if is_negated else found

    def _compared(self, column: Field, operator: str, literal: Literal, start: int) -> Predicate:
        (value,) = self._values(column, [literal], start)
        return comparison(column, operator, value)

    def _is(self, column: Field, start: int) -> Predicate:
        is_negated = self.accept("NOT")
        if self.accept("NULL"):
            found: Predicate = IsNull(column.name)
        elif self.ahead.word in ("TRUE", "FALSE"):
            (value,) = self._values(column, [self._expected_literal()], start)
            found = flag(column, value)
        else:
            self.fail("expected NULL, TRUE or FALSE")
        return negation(found) if is_negated else found

    def _in(self, column: Field, start: int) -> Predicate:
        self.expect("(")
        literals: list[Literal] = []
        while not self.accept(")"):
            if literals and not self.accept(","):
                self.fail("expected , or )")
            literals.append(self._expected_literal())
        return equalities(column, self._values(column, literals, start))

    def _between(self, column: Field, start: int) -> Predicate:
        low = self._expected_literal()
        self.expect("AND")
        ends = [low, self._expected_literal()]
        return between(column, *self._values(column, ends, start))

    def _like(self, column: Field) -> Predicate:
        if column.type.root not in ("CHAR", "VARCHAR"):
            self.fail(
                f"LIKE needs a string column, and column {column.name} is {column.type.sql()}"
            )
        pattern = self._expected_literal()
        if pattern.form != "TEXT":
            self.fail("LIKE needs a quoted pattern")
        return Like(column.name, pattern.text)

    # -- operands ----------------------------------------------------------------------------------

    def _operator(self) -> str:
        operator = _OPERATORS.get(self.ahead.word)
        if operator is None:
            self.fail("expected a comparison")
        self.place += 1
        return operator

    def _column(self) -> Field:
        is_wrapped = self.accept("(")
        token = self.ahead
        if token.form == "QUOTED":
            name = _unquoted(token.text)
        elif token.form == "WORD" and token.word not in _RESERVED:
            name = token.text
        else:
            self.fail("expected a column")
        self._refuse_function()
        column = field_of(name, self.fields, self.table)
        self.place += 1
        if is_wrapped:
            self.expect(")")
        return column

    def _expected_literal(self) -> Literal:
        literal = self._literal()
        if literal is None:
            self._refuse_function()
            self.fail("expected a literal")
        return literal

    def _refuse_function(self) -> None:
        """Raise `InvalidError` if a function is called."""
        if self.ahead.form in ("WORD", "QUOTED") and self.tokens[self.place + 1].word == "(":
            raise InvalidError(
                f"table {self.table}: the condition calls {self.ahead.text}(...) at position "
                f"{self.ahead.start}, but conditions of scans support no functions; compare the "
                "column itself, such as ts >= TIMESTAMP '2026-01-01 00:00:00' for a year, or "
                "query the table in SQL: lake.sql(...)"
            )

    def _literal(self) -> Literal | None:
        """The literal that comes next, if any."""
        token = self.ahead
        if token.word == "(" and self._is_operand_in_parentheses():
            self.place += 1
            literal = self._literal()
            if literal is None:
                self.place -= 1
            else:
                self.expect(")")
            return literal
        if token.word in ("-", "+"):
            number = self.tokens[self.place + 1]
            if number.form != "NUMBER":
                self.fail("expected a number after the sign")
            self.place += 2
            return Literal("NUMBER", token.word.replace("+", "") + number.text)
        found = self._plain_literal(token)
        if found is not None:
            self.place += 1
        return found

    def _plain_literal(self, token: _Token) -> Literal | None:
        if token.form == "NUMBER":
            return Literal("NUMBER", token.text)
        if token.form == "TEXT":
            return Literal("TEXT", _unquoted(token.text))
        if token.form == "BYTES":
            digits = token.text[2:-1]
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", digits):
                self.fail("expected pairs of hexadecimal digits")
            return Literal("BYTES", digits)
        if token.word in ("TRUE", "FALSE"):
            return Literal("BOOLEAN", token.word)
        if token.word == "NULL":
            return Literal("NULL", "NULL")
        following = self.tokens[min(self.place + 1, len(self.tokens) - 1)]
        if token.word in _TYPED and following.form == "TEXT":
            self.place += 1
            return Literal(token.word, _unquoted(following.text))
        return None

    def _values(self, column: Field, literals: Sequence[Literal], start: int) -> list[Any]:
        return known_values(literals, column, self.table, self._shown(start))

    # -- errors ------------------------------------------------------------------------------------

    def _shown(self, start: int) -> str:
        """What was read since a token, shortened if it is long."""
        last = self.tokens[self.place - 1]
        text = self.text[self.tokens[start].start : last.start + len(last.text)]
        return repr(text if len(text) <= 200 else text[:200] + "...")

    def fail(self, what: str) -> NoReturn:
        token = self.ahead
        found = f"found {token.text[:50]!r}" if token.text else "found the end of the condition"
        before = self.text[max(0, token.start - 50) : token.start]
        raise InvalidError(
            f"table {self.table}: the condition cannot be parsed at position {token.start}, "
            f"after {before!r}: {what}, {found}; compare a column with a literal, or filter the "
            "result of the scan"
        )
