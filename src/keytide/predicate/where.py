"""Strings as predicates: the grammar of `where`, and the conditions on which SQL engines agree.

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

DuckDB, Spark and Keytide agree on some terms, so that it does not matter who evaluates them. This
depends on the column's type and on how the literal is written. Engines differ in numbers in quotes
or with an exponent, in comparisons of strings with a CHAR, in lists of times, and in times in other
formats than ISO 8601. An SQL condition of agreed terms alone is a predicate: this grammar reads it
as the SQL parser does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from keytide.base.dataclass import dataclass, field
from keytide.errors import InvalidError, NotFoundError
from keytide.predicate.literals import (
    NUMBER,
    Literal,
    between,
    comparison,
    equalities,
    flag,
    known_values,
    values_of,
)
from keytide.predicate.predicate import (
    DEPTH_MAX,
    FLIPPED,
    IsNull,
    Like,
    Predicate,
    conjunction,
    depth_of,
    disjunction,
    field_of,
    negation,
)
from keytide.types import AtomicType, Field

if TYPE_CHECKING:
    from typing_extensions import Self

# -- parsing of strings ----------------------------------------------------------------------------


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

    return _Parser.of(text, fields, table).predicate()


# -- tokens ----------------------------------------------------------------------------------------

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


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


# -- the grammar -----------------------------------------------------------------------------------

_OPERATORS = {**{name: name for name in FLIPPED}, "==": "=", "<>": "!="}
_TYPED = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_RESERVED = ("AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "NULL", "TRUE", "FALSE")


@dataclass
class _OpenCondition:
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
    # A narrower grammar overrides the checks of terms and values.
    fields: dict[str, Field]
    table: str
    text: str
    tokens: list[_Token]
    place: int = 0

    @classmethod
    def of(cls, text: str, fields: Sequence[Field], table: str) -> Self:
        found = [
            _Token(match.lastgroup, match.group(), match.start())
            for match in _TOKEN.finditer(text)
            if match.lastgroup is not None
        ]
        return cls({f.name: f for f in fields}, table, text, [*found, _Token("END", "", len(text))])

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
        open_ = [_OpenCondition()]
        while True:
            # The parentheses and negations before the next term.
            is_operand = False
            while not is_operand:
                if self.accept("NOT"):
                    open_[-1].is_negated = not open_[-1].is_negated
                elif self.ahead.word == "(" and not self._is_operand_in_parentheses():
                    self.place += 1
                    if len(open_) > DEPTH_MAX:
                        self.fail(f"more than {DEPTH_MAX} open parentheses")
                    open_.append(_OpenCondition())
                else:
                    is_operand = True
            open_[-1].add(self._comparison())
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
            operator = _OPERATORS.get(self.ahead.word)
            if operator is None:
                self.fail("expected a comparison")
            self.place += 1
            column = self._column()
            self.check_term(column, operator)
            return self._compared(column, FLIPPED[operator], literal, start)
        column = self._column()
        is_negated = self.accept("NOT")
        self.check_term(column, self.ahead.word)
        if not is_negated and self.accept("IS"):
            return self._is(column, start)
        if self.accept("IN"):
            found = self._in(column, start)
        elif self.accept("BETWEEN"):
            low = self._expected_literal()
            self.expect("AND")
            ends = [low, self._expected_literal()]
            found = between(column, *self.values(column, ends, start))
        elif self.accept("LIKE"):
            found = self._like(column)
        elif is_negated:
            self.fail("expected IN, BETWEEN or LIKE")
        elif self.ahead.word in _OPERATORS:
            operator = _OPERATORS[self.ahead.word]
            self.place += 1
            found = self._compared(column, operator, self._expected_literal(), start)
        elif self.ahead.word in ("", "AND", "OR", ")"):
            return self._compared(column, "=", Literal("BOOLEAN", "TRUE"), start)
        else:
            self.fail("expected a comparison")
        return negation(found) if is_negated else found

    def _compared(self, column: Field, operator: str, literal: Literal, start: int) -> Predicate:
        (value,) = self.values(column, [literal], start)
        return comparison(column, operator, value)

    def _is(self, column: Field, start: int) -> Predicate:
        is_negated = self.accept("NOT")
        if self.accept("NULL"):
            found: Predicate = IsNull(column.name)
        elif self.ahead.word in ("TRUE", "FALSE"):
            (value,) = self.values(column, [self._expected_literal()], start)
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
        return equalities(column, self.values(column, literals, start))

    def _like(self, column: Field) -> Predicate:
        if column.type.root not in ("CHAR", "VARCHAR"):
            self.fail(
                f"LIKE needs a string column, and column {column.name} is {column.type.sql()}"
            )
        pattern = self._expected_literal()
        if pattern.form != "TEXT":
            self.fail("LIKE needs a quoted pattern")
        return Like(column.name, pattern.text)

    def check_term(self, column: Field, word: str) -> None:
        """Refuse a term with this operator or keyword."""

    # -- operands ----------------------------------------------------------------------------------

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

    def values(self, column: Field, literals: Sequence[Literal], start: int) -> list[Any]:
        """Literals as values of the column. `start` is the first token of their term."""
        # What was read since the first token, shortened if it is long.
        last = self.tokens[self.place - 1]
        text = self.text[self.tokens[start].start : last.start + len(last.text)]
        said = repr(text if len(text) <= 200 else text[:200] + "...")
        return known_values(literals, column, self.table, said)

    # -- errors ------------------------------------------------------------------------------------

    def fail(self, what: str) -> NoReturn:
        token = self.ahead
        found = f"found {token.text[:50]!r}" if token.text else "found the end of the condition"
        before = self.text[max(0, token.start - 50) : token.start]
        raise InvalidError(
            f"table {self.table}: the condition cannot be parsed at position {token.start}, "
            f"after {before!r}: {what}, {found}; compare a column with a literal, or filter the "
            "result of the scan"
        )


# -- terms on which engines agree ------------------------------------------------------------------


def agrees_on(word: str, field: Field) -> bool:
    """Whether terms with this operator or keyword have one meaning for a column."""
    root = field.type.root
    if word in ("<", "<=", ">", ">=", "BETWEEN"):
        return not field.type.is_nested and root != "BOOLEAN"
    if word == "IN":  # some engines compare times with a list of strings as strings
        return not field.type.is_nested and root not in ("TIMESTAMP", "TIMESTAMP_LTZ")
    return root == "VARCHAR" if word == "LIKE" else not field.type.is_nested


def agreed_values(literals: Sequence[Literal | None], field: Field) -> list[Any] | None:
    """Literals as values of a column, None if engines would interpret one differently.

    A None among the literals is one that this grammar does not have.
    """
    assert isinstance(field.type, AtomicType)
    agreed = [each for each in literals if each is not None and _is_agreed(each, field.type)]
    if len(agreed) < len(literals):
        return None
    try:
        return values_of(agreed, field)
    except ValueError:
        return None  # left to the engine


def _is_agreed(literal: Literal, type_: AtomicType) -> bool:
    """Whether all engines interpret a literal as the same value of the column's type."""
    form, text = literal
    if form == "BOOLEAN":
        return type_.root == "BOOLEAN"
    if form == "NUMBER":
        return _is_agreed_number(text, type_)
    if form == "TEXT" and type_.root == "VARCHAR":
        return True
    if form == "TEXT":
        pattern = _MOMENTS.get(type_.root)
    elif form == "DATE":
        pattern = _DATE if type_.root in ("DATE", "TIMESTAMP") else None
    elif form == "TIMESTAMP":
        pattern = _TIMESTAMP if type_.root == "TIMESTAMP" else None
    else:
        pattern = None
    # A time can have no more digits than the column.
    fraction = re.search(r"\.(\d+)", text)
    digits = {"ms": 3}.get(getattr(type_.to_arrow(), "unit", ""), 6)
    is_too_fine = fraction is not None and len(fraction[1]) > digits
    return pattern is not None and bool(pattern.fullmatch(text)) and not is_too_fine


def _is_agreed_number(number: str, type_: AtomicType) -> bool:
    if not re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", number, re.ASCII):
        return False  # a number with an exponent
    whole, _, fraction = number.lstrip("-").partition(".")
    if type_.root in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        most = 1 << type_.to_arrow().bit_width - 1
        return "." not in number and len(number) <= 20 and -most <= int(number) < most
    if type_.root == "DECIMAL":
        # The type that holds both has at most 38 digits. Beyond that, engines round. An integer is
        # treated as a BIGINT.
        digits = len(whole) if "." in number else 19
        precision, scale = type_.precision or 0, type_.scale or 0
        most_digits = max(precision - scale, digits) + max(scale, len(fraction))
        return len(whole) <= 18 and most_digits <= 38
    # A DOUBLE holds 15 decimal digits exactly, however it is parsed.
    if type_.root not in ("DOUBLE", "FLOAT") or len(whole + fraction) > 15:
        return False
    # A FLOAT must not be rounded, because some engines compare as DOUBLE.
    return type_.root == "DOUBLE" or Decimal(float(np.float32(number))) == Decimal(number)


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?", re.ASCII)
_MOMENTS = {
    "DATE": _DATE,
    "TIMESTAMP": _TIMESTAMP,
    "TIMESTAMP_LTZ": re.compile(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d:\d\d", re.ASCII
    ),
}


# -- SQL conditions --------------------------------------------------------------------------------


def agreed_predicate(text: str, fields: Sequence[Field]) -> Predicate | None:
    """The predicate that is true for exactly the rows for which an SQL condition is true.

    None if it has other terms, or is nothing that `where` reads, such as a call or a wrong name.
    """
    # Statements refuse columns with names like those that they give to others.
    if _OTHERWISE_READ.search(text) or any(field.name.startswith("$") for field in fields):
        return None
    try:
        found = _AgreedParser.of(text, fields, "").predicate()
    except (InvalidError, NotFoundError):
        return None
    return found if depth_of(found) <= DEPTH_MAX else None


_OTHERWISE_READ = re.compile(r"[\"\\]|[^\S \t\n\r]|\b(current|session)_", re.IGNORECASE)
"""What SQL may read in another way: quotes, escapes and blanks, and functions without brackets."""


class _AgreedParser(_Parser):
    """The grammar of `where` without terms on which engines do not agree."""

    def check_term(self, column: Field, word: str) -> None:
        if not agrees_on(word, column):
            self.fail("the engine decides")

    def values(self, column: Field, literals: Sequence[Literal], start: int) -> list[Any]:
        found = agreed_values(literals, column)
        if not found:  # SQL has no empty lists
            self.fail("the engine decides")
        return found
