"""Terms on which DuckDB, Spark and Keytide agree, so that it does not matter who evaluates them.

This depends on the column's type and on how the literal is written. Engines differ in numbers in
quotes or with an exponent, in comparisons of strings with a CHAR, in lists of times, and in times
in other formats than ISO 8601.

An SQL condition of such terms alone is a predicate. The grammar of `where` reads it as the SQL
parser does, without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from keytide.errors import InvalidError, NotFoundError
from keytide.predicate.literals import Literal, values_of
from keytide.predicate.predicate import DEPTH_MAX, Predicate, depth_of
from keytide.predicate.where import ConditionParser
from keytide.types import AtomicType, Field

# -- terms -----------------------------------------------------------------------------------------


def agrees_on(word: str, field: Field) -> bool:
    """Whether terms with this operator or keyword have one meaning for a column."""
    root = field.type.root
    if word in ("<", "<=", ">", ">=", "BETWEEN"):
        return not field.type.is_nested and root != "BOOLEAN"
    if word == "IN":  # some engines compare times with a list of strings as strings
        return not field.type.is_nested and root not in ("TIMESTAMP", "TIMESTAMP_LTZ")
    return root == "VARCHAR" if word == "LIKE" else not field.type.is_nested


def agreed_values(literals: Sequence[Literal], field: Field) -> list[Any] | None:
    """Literals as values of a column, None if engines would interpret one differently."""
    assert isinstance(field.type, AtomicType)
    if not all(_is_agreed(literal, field.type) for literal in literals):
        return None
    try:
        return values_of(literals, field)
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


class _AgreedParser(ConditionParser):
    """The grammar of `where` without terms on which engines do not agree."""

    def check_term(self, column: Field, word: str) -> None:
        if not agrees_on(word, column):
            self.fail("the engine decides")

    def values(self, column: Field, literals: Sequence[Literal], start: int) -> list[Any]:
        found = agreed_values(literals, column)
        if not found:  # SQL has no empty lists
            self.fail("the engine decides")
        return found
