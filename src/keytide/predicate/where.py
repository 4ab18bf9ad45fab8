"""Conditions as predicates: strings in the grammar of `where`, Polars and Arrow expressions.

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

Polars describes the parts of an expression in JSON, and returns its parts as expressions. Polars
itself computes the values. Words that are unknown here are refused. So if a release of Polars
renames something, expressions with it are refused and never misunderstood.

Of an Arrow schema with duplicate keys in its metadata, pyarrow returns a dict, which has each key
only once. pyarrow returns a dict, which has each key only once. Arrow's C data interface returns
everything: the number of pairs, and for each its key and value, as a 32-bit length and the bytes.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import polars as pl
import pyarrow as pa

from keytide.base.arguments import shown
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
)
from keytide.predicate.predicate import (
    DEPTH_MAX,
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Or,
    Predicate,
    conjunction,
    disjunction,
    negation,
)
from keytide.types import Field

if TYPE_CHECKING:
    from typing_extensions import Self

# -- Polars expressions ----------------------------------------------------------------------------


_COMPARE = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ENDS = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_ANDS = ("And", "LogicalAnd", "Boolean.AllHorizontal")
_OF_VALUES = ("Literal", "Alias", "Cast", "Negate")


def read_expression(expression: pl.Expr, table: str) -> Predicate:
    """The predicate for an expression, with Arrow values.

    Raises `InvalidError`, which names the part that a condition cannot have.
    """
    try:
        document = json.loads(expression.meta.serialize(format="json"))
        return _Part(expression, document, table).predicate()
    except RecursionError as error:
        raise InvalidError(
            f"table {table}: the expression is nested too deeply; combine its parts with "
            "pl.all_horizontal or pl.any_horizontal, and values with is_in"
        ) from error
    except pl.exceptions.PolarsError as error:
        raise InvalidError(
            f"table {table}: Polars cannot resolve {shown(str(expression))}: {error}"
        ) from error


def terms_of(expression: pl.Expr) -> list[pl.Expr]:
    """The parts of an expression that are joined by AND, or the expression itself.

    Also the expression itself if Polars cannot describe its parts.
    """
    try:
        document = json.loads(expression.meta.serialize(format="json"))
        part = _Part(expression, document, "")
        if part.name not in _ANDS:
            return [expression]
        return [term for each in part.parts for term in terms_of(each.expression)]
    except (InvalidError, RecursionError, pl.exceptions.PolarsError):
        return [expression]


@dataclass(frozen=True)
class _Part:
    expression: pl.Expr
    description: Any
    table: str

    @property
    def name(self) -> str:
        """The name of its operation, such as `Gt` or `Boolean.IsNull`, or the kind of a leaf."""
        kind, inner = _name_and_content(self.description)
        if kind == "BinaryExpr":
            return str(inner["op"])
        if kind != "Function":
            return kind
        family, member = _name_and_content(inner["function"])
        return family if member is None else f"{family}.{_name_and_content(member)[0]}"

    @property
    def options(self) -> Any:
        """What is known about a function besides its name."""
        return (
            _name_and_content(
                _name_and_content(_name_and_content(self.description)[1]["function"])[1]
            )[1]
            or {}
        )

    @property
    def parts(self) -> list[_Part]:
        """Its parts, from left to right."""
        kind, inner = _name_and_content(self.description)
        inputs: list[Any] = []
        if kind == "BinaryExpr":
            inputs = [inner["left"], inner["right"]]
        elif kind in ("Function", "Cast"):
            inputs = inner["input"] if kind == "Function" else [inner["expr"]]
        elif kind == "Alias":
            inputs = inner[:1]
        made = self.expression.meta.pop()[::-1]  # Polars returns them from right to left
        if len(made) != len(inputs):
            raise self.refused()
        return [_Part(*each, self.table) for each in zip(made, inputs, strict=True)]

    def predicate(self) -> Predicate:
        """The predicate for this part."""
        read = _READERS.get(self.name)
        if read is None:
            raise self.refused()
        return read(self, *self.parts)

    def compared(self, operator: str, other: _Part) -> Predicate:
        """A comparison with another part. One of the two is a column."""
        if self.name == "Column":
            return Comparison(self.column(), operator, other.value())
        if other.name != "Column":
            raise self.refused()
        return Comparison(other.column(), _FLIPPED[operator], self.value())

    def is_in(self, column: _Part, values: _Part) -> Predicate:
        """The column is one of the values."""
        if self.options.get("nulls_equal") is not False:
            raise self.refused()
        return In(column.column(), tuple(values.values()))

    def is_between(self, column: _Part, low: _Part, high: _Part) -> Predicate:
        """The column is between two values, inclusive or exclusive."""
        ends = _ENDS.get(self.options.get("closed"))
        if ends is None:
            raise self.refused()
        return And((column.compared(ends[0], low), column.compared(ends[1], high)))

    def starts_with(self, column: _Part, prefix: _Part) -> Predicate:
        """The column begins with a string."""
        text = prefix.value().as_py()
        if not isinstance(text, str):
            raise self.refused()
        return Like(column.column(), "".join("\\" + c if c in "\\%_" else c for c in text) + "%")

    def column(self) -> str:
        """The name of the column."""
        kind, name = _name_and_content(self.description)
        if kind != "Column":
            raise self.refused()
        return str(name)

    def value(self) -> Any:
        """The value."""
        values = self.values()
        if len(values) != 1:
            raise self.refused()
        return values[0]

    def values(self) -> list[Any]:
        """The values."""
        if not self._is_made_of_values():
            raise self.refused()
        made = pl.select(self.expression).to_series()
        if isinstance(made.dtype, pl.List | pl.Array):
            made = made.explode(empty_as_null=False)
        return list(made.to_arrow())

    def _is_made_of_values(self) -> bool:
        return self.name in _OF_VALUES and all(part._is_made_of_values() for part in self.parts)

    def refused(self) -> InvalidError:
        """An error about this part."""
        return InvalidError(
            f"table {self.table}: the condition contains {shown(str(self.expression))}, which is "
            "not supported. Supported are comparisons of columns with values, is_in, is_between, "
            "is_null, is_not_null and str.starts_with, combined with &, | and ~; use it to "
            "filter the result of the scan instead"
        )


def _name_and_content(description: Any) -> tuple[str, Any]:
    """The name and the content of a word, or of an object with one key."""
    if isinstance(description, dict) and len(description) == 1:
        return next(iter(description.items()))
    return str(description), None


def _reader_of(operator: str) -> Callable[..., Predicate]:
    return lambda _, left, right: left.compared(operator, right)


def _reader_of_many(joint: type[And | Or]) -> Callable[..., Predicate]:
    return lambda _, *parts: joint(tuple(part.predicate() for part in parts))


_READERS: dict[str, Callable[..., Predicate]] = {
    **{name: _reader_of(operator) for name, operator in _COMPARE.items()},
    **{name: _reader_of_many(And) for name in _ANDS},
    **{name: _reader_of_many(Or) for name in ("Or", "LogicalOr", "Boolean.AnyHorizontal")},
    "Column": lambda part: Comparison(part.column(), "=", value=True),
    "Alias": lambda _, named: named.predicate(),
    "Boolean.Not": lambda _, negated: negation(negated.predicate()),
    "Boolean.IsNull": lambda _, column: IsNull(column.column()),
    "Boolean.IsNotNull": lambda _, column: negation(IsNull(column.column())),
    "Boolean.IsIn": _Part.is_in,
    "Boolean.IsBetween": _Part.is_between,
    "StringExpr.StartsWith": _Part.starts_with,
}
"""How to convert the known operations, given the operation and its parts."""


# -- metadata of an Arrow schema with duplicate keys -----------------------------------------------


class _Schema(ctypes.Structure):
    # The first members of the interface's struct ArrowSchema.
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def words_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """The pairs of the schema's metadata, in order."""
    capsule = schema.__arrow_c_schema__()
    place = _Schema.from_address(_pointer(capsule, b"arrow_schema")).metadata
    if place is None:
        return []
    count, place = _number(place)
    pairs = []
    for _ in range(count):
        key, place = _text(place)
        value, place = _text(place)
        pairs.append((key, value))
    return pairs


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _number(place: int) -> tuple[int, int]:
    return ctypes.c_int32.from_address(place).value, place + 4


def _text(place: int) -> tuple[str, int]:
    length, place = _number(place)
    return ctypes.string_at(place, length).decode(), place + length


# -- columns by name -------------------------------------------------------------------------------


def field_of(name: str, fields: Mapping[str, Field], table: str) -> Field:
    """The column with that name. Raises `NotFoundError`, which lists the existing columns."""
    if name not in fields:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(fields)}")
    return fields[name]


def column_of(name: str, columns: Iterable[str], table: str) -> str:
    """The column with that name in a statement, which may spell it in another case.

    Raises `NotFoundError`, and `InvalidError` if there are several.
    """
    known = list(columns)
    if name in known:
        return name
    found = [column for column in known if column.lower() == name.lower()]
    if not found:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(known)}")
    if len(found) > 1:
        raise InvalidError(f"table {table}: {name!r} is ambiguous: {' or '.join(map(repr, found))}")
    return found[0]


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

    return ConditionParser.of(text, fields, table).predicate()


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

_OPERATORS = {**{name: name for name in _FLIPPED}, "==": "=", "<>": "!="}
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
class ConditionParser:
    """Parses one condition. A narrower grammar overrides the checks of its terms and values."""

    fields: dict[str, Field]
    table: str
    text: str
    tokens: list[_Token]
    place: int = 0

    @classmethod
    def of(cls, text: str, fields: Sequence[Field], table: str) -> Self:
        """A parser before the first token of a text."""
        found = [
            _Token(match.lastgroup, match.group(), match.start())
            for match in _TOKEN.finditer(text)
            if match.lastgroup is not None
        ]
        return cls({f.name: f for f in fields}, table, text, [*found, _Token("END", "", len(text))])

    @property
    def ahead(self) -> _Token:
        """The next token."""
        return self.tokens[self.place]

    def accept(self, word: str) -> bool:
        """Whether the next token is this word or sign, which is then behind."""
        if self.tokens[self.place].word != word:
            return False
        self.place += 1
        return True

    def expect(self, word: str) -> None:
        """Go past this word or sign, which must be next."""
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
            return self._compared(column, _FLIPPED[operator], literal, start)
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
        """Raise `InvalidError` at the next token."""
        token = self.ahead
        found = f"found {token.text[:50]!r}" if token.text else "found the end of the condition"
        before = self.text[max(0, token.start - 50) : token.start]
        raise InvalidError(
            f"table {self.table}: the condition cannot be parsed at position {token.start}, "
            f"after {before!r}: {what}, {found}; compare a column with a literal, or filter the "
            "result of the scan"
        )
