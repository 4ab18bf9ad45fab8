"""Converts Arrow compute expressions to predicates.

A pickled Arrow expression describes its parts: words for its calls, columns and values, in the
order of the tree. Words that are unknown here are refused. So if a release of Arrow renames
something, expressions with it are refused and never misunderstood.

Of an Arrow schema with duplicate keys in its metadata, pyarrow returns a dict, which has each key
only once. Arrow's C data interface returns everything: the number of pairs, and for each its key
and value, as a 32-bit length and the bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.predicate.predicate import (
    FLIPPED,
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Or,
    Predicate,
    conjunction,
    negation,
)

_COMPARE = {
    "equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
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
        return cls(_pairs_of(values.schema), values, made_of)

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
            one, other, operator = other, one, FLIPPED[operator]
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


# -- metadata of an Arrow schema with duplicate keys -----------------------------------------------


class _Schema(ctypes.Structure):
    # The first members of the interface's struct ArrowSchema.
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _pairs_of(schema: pa.Schema) -> list[tuple[str, str]]:
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
