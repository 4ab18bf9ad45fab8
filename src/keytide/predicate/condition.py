"""Conditions of callers and CHECK constraints, converted to predicates once, where a call enters.

A CHECK constraint is a condition of one row, as a table stores it. A string in the grammar of
`where` has the same meaning as in a scan. Any other string is a SQL expression that returns a
BOOLEAN. It may compare columns with each other, calculate and call functions, as long as it always
gives the same value for the same row.

A pickled Arrow expression describes its parts: words for its calls, columns and values, in the
order of the tree. Words that are unknown here are refused. So if a release of Arrow renames
something, expressions with it are refused and never misunderstood.

A predicate is also formatted as a string for people. `where` parses it into the same predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.row_engine import duckdb_expression
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.arrow import to_arrow
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.literals import Literal, comparison, equalities, known_values, literal_of
from keytide.predicate.predicate import (
    DEPTH_MAX,
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    columns_of,
    conjunction,
    disjunction,
    negation,
    row_filter,
)
from keytide.predicate.row_expression import RowExpression, row_expression
from keytide.predicate.where import field_of, parse_where, read_expression, words_of
from keytide.types import AtomicType, Field, arrow_schema, quoted

# -- Arrow expressions -----------------------------------------------------------------------------


_COMPARE = {
    "equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ANDS = ("and_kleene", "and")
_ORS = ("or_kleene", "or")


def read_arrow_expression(expression: pc.Expression, table: str) -> Predicate:
    """The predicate for an expression, with Arrow values.

    Raises `InvalidError`, which names the part that a condition cannot have.
    """
    try:
        return _ExpressionWords.of(expression).parts().predicate()
    except RecursionError as error:
        raise InvalidError(
            f"table {table}: the expression is nested too deeply; use isin to compare a column "
            "with many values"
        ) from error
    except pa.ArrowException as error:
        raise InvalidError(
            f"table {table}: Arrow cannot resolve {shown(str(expression))}: {error}; refer to "
            "columns with pc.field('name')"
        ) from error
    except _StrangeError as error:
        raise InvalidError(
            f"table {table}: the condition contains {error.args[0]}, which is not supported. "
            "Supported are comparisons of columns with values, isin, is_null, is_valid, "
            "starts_with and match_like, combined with &, | and ~; use it to filter the result "
            "of the scan instead"
        ) from error


def terms_of_arrow(expression: pc.Expression) -> list[pc.Expression]:
    """The parts of an expression that are joined by AND, or the expression itself.

    Also the expression itself if Arrow cannot describe its parts.
    """
    try:
        return [part.expression() for part in _ExpressionWords.of(expression).parts().joined(_ANDS)]
    except (RecursionError, pa.ArrowException, _StrangeError):
        return [expression]


def columns_of_arrow(expression: pc.Expression) -> frozenset[str]:
    """The columns that an expression uses, and maybe names inside columns.

    Raises `ArrowException` if it does not name them.
    """
    return frozenset(
        said for kind, said in _ExpressionWords.of(expression).words if kind == "field_ref"
    )


class _StrangeError(Exception):
    """Names a part that a condition cannot have."""


@dataclass(frozen=True)
class _ExpressionWords:
    """Arrow's description of an expression: words, and the values that some of them refer to by
    number.
    """

    words: Sequence[tuple[str, str]]
    values: pa.RecordBatch
    made_of: Callable[[pa.Buffer], pc.Expression]

    @classmethod
    def of(cls, expression: pc.Expression) -> _ExpressionWords:
        made_of, (state,) = expression.__reduce__()
        values = pa.ipc.open_file(state).get_batch(0)
        return cls(words_of(values.schema), values, made_of)

    def parts(self) -> _Part:
        """The words as a tree."""
        root = _Part(self, "root", "", 0, 0, [])
        open_ = [root]
        members = 0
        for place, (kind, said) in enumerate(self.words):
            if members:  # a member of the column before it
                members -= 1
                continue
            if kind == "end":
                open_.pop().end = place + 1
                continue
            members = int(said) if kind == "nested_field_ref" else 0
            part = _Part(self, kind, said, place, place + 1 + members, [])
            open_[-1].parts.append(part)
            if kind == "call":
                open_.append(part)
        if len(root.parts) != 1 or len(open_) != 1:
            raise _StrangeError("its serialized form")
        return root.parts[0]


@dataclass
class _Part:
    source: _ExpressionWords
    kind: str
    word: str
    start: int
    end: int
    parts: list[_Part]

    def predicate(self) -> Predicate:
        """The predicate for this part."""
        if self.kind == "field_ref":
            return Comparison(self.word, "=", value=True)
        read = _READERS.get(self.word) if self.kind == "call" else None
        if read is None:
            raise self.strange()
        return read(self)

    def joined(self, calls: Sequence[str]) -> Iterator[_Part]:
        """The parts that are joined by one of the calls, from left to right, or this part
        itself.
        """
        left = [self]
        while left:
            part = left.pop()
            if part.kind == "call" and part.word in calls:
                left += reversed(part.parts)
            else:
                yield part

    def compared(self) -> Predicate:
        """A column and a value."""
        operator = _COMPARE[self.word]
        one, other = self.operands(2)
        if one.kind == "literal":
            one, other, operator = other, one, _FLIPPED[operator]
        if one.kind != "field_ref" or other.kind != "literal":
            raise self.strange()
        return Comparison(one.word, operator, other.stored())

    def is_null(self) -> Predicate:
        """The column is NULL."""
        if self.option("nan_is_null").as_py() is not False:
            raise self.strange()
        return IsNull(self.column())

    def is_in(self) -> Predicate:
        """The column is one of the values. This is never unknown."""
        values = [value for value in self.option("value_set").values if value.is_valid]
        column = self.column()
        if len(values) == len(self.option("value_set").values):
            return And((negation(IsNull(column)), In(column, tuple(values))))
        if self.option("null_matching_behavior").as_py() != _NULL_EQUALS_NULL:
            raise self.strange()
        return Or((IsNull(column), In(column, tuple(values))))

    def is_like(self) -> Predicate:
        """The column's string matches a pattern, or begins with it."""
        pattern = self.option("pattern").as_py()
        if self.option("ignore_case").as_py() is not False:
            raise self.strange()
        if self.word == "starts_with":
            pattern = "".join("\\" + c if c in "\\%_" else c for c in pattern) + "%"
        return Like(self.column(), pattern)

    def column(self) -> str:
        """The column that a call uses."""
        (operand,) = self.operands(1)
        if operand.kind != "field_ref":
            raise self.strange()
        return operand.word

    def operands(self, count: int) -> list[_Part]:
        """The parts of a call, without its options."""
        found = [part for part in self.parts if part.kind != "options"]
        if len(found) != count:
            raise self.strange()
        return found

    def option(self, name: str) -> pa.Scalar:
        """One of its options."""
        found = [part for part in self.parts if part.kind == "options"]
        try:
            return found[0].stored()[name]
        except (IndexError, KeyError) as error:
            raise self.strange() from error

    def stored(self) -> Any:
        """The value that it refers to by number."""
        return self.source.values.column(int(self.word))[0]

    def expression(self) -> pc.Expression:
        """This part as an expression."""
        words = pa.KeyValueMetadata(self.source.words[self.start : self.end])
        batch = self.source.values.replace_schema_metadata(words)
        made = pa.BufferOutputStream()
        with pa.ipc.new_file(made, batch.schema) as file:
            file.write_batch(batch)
        return self.source.made_of(made.getvalue())

    def strange(self) -> _StrangeError:
        """An error about this part."""
        return _StrangeError(shown(str(self.expression())))


_NULL_EQUALS_NULL = 0


def _all_of(part: _Part) -> Predicate:
    found = conjunction(each.predicate() for each in part.joined(_ANDS))
    assert found is not None
    return found


_READERS: dict[str, Callable[[_Part], Predicate]] = {
    **dict.fromkeys(_COMPARE, _Part.compared),
    **dict.fromkeys(_ANDS, _all_of),
    **dict.fromkeys(_ORS, lambda part: Or(tuple(each.predicate() for each in part.joined(_ORS)))),
    "invert": lambda part: negation(part.operands(1)[0].predicate()),
    "is_null": _Part.is_null,
    "is_valid": lambda part: negation(IsNull(part.column())),
    "is_in": _Part.is_in,
    "starts_with": _Part.is_like,
    "match_like": _Part.is_like,
}
"""How to convert the known words."""


# -- conversion to predicates ----------------------------------------------------------------------


Condition: TypeAlias = str | Predicate | pl.Expr | pc.Expression
"""A string in the language of `where`, a tree of `predicate`, or an expression of Polars or
Arrow.
"""


def predicate_of(where: Condition, fields: Sequence[Field], table: str) -> Predicate:
    """A condition over a table's columns, with values in the types of the columns.

    Raises `InvalidError` for a condition that does not parse or fit, and `NotFoundError` for an
    unknown column.
    """
    if isinstance(where, pl.Expr):
        where = read_expression(where, table)
    elif isinstance(where, pc.Expression):
        where = read_arrow_expression(where, table)
    by_name = {field.name: field for field in fields}
    if isinstance(where, Predicate):
        return _Typing(by_name, table).typed(where)
    return parse_where(where, fields, table)


@dataclass(frozen=True)
class _Typing:
    """Rebuilds a tree as the parser would have created it."""

    fields: Mapping[str, Field]
    table: str

    def typed(self, node: Predicate, depth: int = 1) -> Predicate:
        if depth > DEPTH_MAX:
            raise self._wrong(f"is nested more than {DEPTH_MAX} levels deep; flatten it")
        if isinstance(node, Not):
            return negation(self.typed(node.term, depth + 1))
        if isinstance(node, And | Or):
            terms = [self.typed(term, depth + 1) for term in self._many(node.terms)]
            if not terms:
                raise self._wrong(
                    f"has an {type(node).__name__} without terms; give it at least one"
                )
            return conjunction(terms) or terms[0] if isinstance(node, And) else disjunction(terms)
        is_term = isinstance(node, Comparison | In | IsNull | Like)
        if not is_term or not isinstance(node.column, str):
            raise self._wrong(f"has {shown(node)} as a term; expected predicates")

        field = field_of(node.column, self.fields, self.table)
        if isinstance(node, IsNull):
            return node
        if isinstance(node, Like):
            if field.type.root not in ("CHAR", "VARCHAR") or not isinstance(node.pattern, str):
                raise self._wrong(
                    f"has {shown(node)}: LIKE needs a string pattern and a string column, and "
                    f"column {field.name} is {field.type.sql()}"
                )
            return node
        if isinstance(node, Comparison) and node.operator not in _OPERATORS:
            raise self._wrong(
                f"has the operator {shown(node.operator)}; expected one of {', '.join(_OPERATORS)}"
            )
        given = self._many(node.values) if isinstance(node, In) else [node.value]
        literals = [literal_of(value, field) for value in given]
        values = known_values(literals, field, self.table, "the condition")
        if isinstance(node, In):
            return equalities(field, values)
        return comparison(field, node.operator, *values)

    def _many(self, members: Any) -> Sequence[Any]:
        if not isinstance(members, tuple | list):
            raise self._wrong(f"has {shown(members)}; expected a tuple")
        return members

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"table {self.table}: the condition {what}")


_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


# -- CHECK constraints -----------------------------------------------------------------------------


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """A condition that every written row must satisfy. `fields` are the columns that it uses."""

    name: str
    text: str
    condition: Predicate | RowExpression
    fields: tuple[Field, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it uses."""
        return tuple(field.name for field in self.fields)

    def fails(self, rows: pl.DataFrame) -> Flags:
        """For which rows it is false or cannot be computed. If it is NULL, a row passes."""
        if isinstance(self.condition, RowExpression):
            given = to_arrow(rows.select(self.columns), arrow_schema(self.fields))
            values, failed = self.condition.tried(given, _BOOLEAN)
            holds = pl.Series(values)
        else:
            holds = rows.select(row_filter(self.condition, self.fields)).to_series()
            failed = np.zeros(rows.height, np.bool_)
        is_false: Flags = np.asarray(holds.fill_null(True)) == False  # noqa: E712  # compares element by element
        return is_false | failed


_BOOLEAN = Field(-1, "holds", AtomicType("BOOLEAN"))


def constraints_of(
    fields: tuple[Field, ...], options: TableOptions, table: str
) -> Mapping[str, Constraint]:
    """The constraints of a table, by name. Raises like `constraint_of`."""
    texts = options.constraint_texts
    return {name: constraint_of(name, text, fields, table) for name, text in texts.items()}


def constraint_of(name: str, text: str, fields: tuple[Field, ...], table: str) -> Constraint:
    """The constraint for a string, over the columns of a table.

    Raises `InvalidError` if it does not parse or fit, does not return a BOOLEAN, or depends on more
    than the columns of a row. Raises `NotFoundError` for an unknown column.
    """
    subject = f"{table}: constraint {name!r}"
    condition, read = _condition(text, fields, subject)
    return Constraint(name, text, condition, read)


def expressions_in(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """The columns that the constraints of a definition use, by their options.

    A constraint that does not parse uses none.
    """
    found = {}
    for name, text in TableOptions.parse(schema.options).constraint_texts.items():
        with suppress(KeytideError):
            key = keys.key_of(keys.CONSTRAINT, name)
            found[key] = constraint_of(name, text, schema.fields, "").columns
    return found


@lru_cache(maxsize=256)
def _condition(
    text: str, fields: tuple[Field, ...], subject: str
) -> tuple[Predicate | RowExpression, tuple[Field, ...]]:
    with suppress(InvalidError, NotFoundError):  # SQL is case-insensitive
        predicate = parse_where(text, fields, subject)
        used = columns_of(predicate)
        return predicate, tuple(field for field in fields if field.name in used)
    by_name = {field.name: field for field in fields}
    try:
        expression = row_expression(duckdb_expression(text, tuple(by_name)))
        read = expression.read_of(by_name)
        expression.check_condition(read)
    except KeytideError as error:
        raise type(error)(f"table {subject}: {error}") from error
    return expression, read


# -- text of predicates ----------------------------------------------------------------------------


def text_of(predicate: Predicate, fields: Sequence[Field]) -> str:
    """A predicate over columns as a condition of `Table.scan(where=...)`."""
    by_name = {field.name: field for field in fields}

    def term(node: Comparison | In | IsNull | Like, no: str = "") -> str:
        name = quoted(node.column)
        if isinstance(node, Comparison):
            return f"{name} {node.operator} {literal_of(node.value, by_name[node.column])}"
        if isinstance(node, In):
            values = (str(literal_of(value, by_name[node.column])) for value in node.values)
            return f"{name} {no}IN ({', '.join(values)})"
        if isinstance(node, IsNull):
            return f"{name} IS {no}NULL"
        return f"{name} {no}LIKE {Literal('TEXT', node.pattern)}"

    def whole(node: Predicate) -> str:
        if isinstance(node, And | Or):
            parts = (f"({whole(t)})" if isinstance(t, And | Or) else whole(t) for t in node.terms)
            return (" AND " if isinstance(node, And) else " OR ").join(parts)
        if not isinstance(node, Not):
            return term(node)
        if isinstance(node.term, In | IsNull | Like):
            return term(node.term, "NOT ")
        return f"NOT ({whole(node.term)})"

    return whole(predicate)
