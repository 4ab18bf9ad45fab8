"""VALUES with plain literals: rows directly from the tokens, without a tree or an engine.

A literal gets a type of the same family as an engine would give it, so a column accepts or refuses
a row in the same way. Everything else is left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
from sqlglot import Token, TokenType

__all__ = ["literal_rows"]

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_BOOLEANS = {TokenType.NULL: None, TokenType.TRUE: True, TokenType.FALSE: False}
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")

_Cell = tuple[TokenType, str]


def literal_rows(tokens: Sequence[Token]) -> pa.Table | None:
    """The rows of `(literal, ...), (literal, ...)`, or None for anything else."""
    cells = _with_signs(tokens)
    types = [type_ for type_, _ in cells]
    if TokenType.R_PAREN not in types:
        return None
    stride = types.index(TokenType.R_PAREN) + 2  # a row and the comma after it
    if stride % 2 or not _is_regular([*types, TokenType.COMMA], stride):
        return None
    columns = []
    for place in range(1, stride - 2, 2):
        column = _column(cells[place::stride])
        if column is None:
            return None
        columns.append(column)
    return pa.table(columns, names=[f"col{i}" for i in range(len(columns))])


def _with_signs(tokens: Sequence[Token]) -> list[_Cell]:
    """The types and spellings of tokens, with each sign joined to its number."""
    cells = [(token.token_type, str(token.text)) for token in tokens]
    if not any(type_ is TokenType.DASH for type_, _ in cells):
        return cells
    signed: list[_Cell] = []
    for cell in cells:
        if cell[0] is TokenType.NUMBER and signed and signed[-1][0] is TokenType.DASH:
            signed[-1] = (TokenType.NUMBER, f"-{cell[1]}")
        else:
            signed.append(cell)
    return signed


def _is_regular(types: Sequence[TokenType], stride: int) -> bool:
    """Whether all rows have brackets and commas in the same places as the first one."""
    between = [TokenType.L_PAREN, *[TokenType.COMMA] * (stride // 2 - 2), TokenType.R_PAREN]
    places = [*range(0, stride, 2), stride - 1]
    expected = [*between, TokenType.COMMA]
    return len(types) % stride == 0 and all(
        set(types[place::stride]) == {type_} for place, type_ in zip(places, expected, strict=True)
    )


def _column(cells: Sequence[_Cell]) -> pa.Array | None:
    """Literals of one type as an array. None for mixed types, or anything but literals."""
    types = {type_ for type_, _ in cells} - {TokenType.NULL}
    if types == {TokenType.STRING}:
        return pa.array(
            [text if type_ is TokenType.STRING else None for type_, text in cells], pa.string()
        )
    if types == {TokenType.NUMBER}:
        return _numbers([text if type_ is TokenType.NUMBER else None for type_, text in cells])
    if types <= _BOOLEANS.keys():
        return pa.array(
            [_BOOLEANS[type_] for type_, _ in cells], pa.bool_() if types else pa.null()
        )
    return None


def _numbers(texts: Sequence[str | None]) -> pa.Array | None:
    if not all(text is None or _NUMBER.fullmatch(text.removeprefix("-")) for text in texts):
        return None
    if any(text is not None and "." in text for text in texts):
        try:
            return pa.array([None if text is None else Decimal(text) for text in texts])
        except pa.ArrowInvalid:
            return None  # more digits than a DECIMAL can hold
    values = [None if text is None else int(text) for text in texts]
    known = [value for value in values if value is not None]
    if min(known) in _INT32 and max(known) in _INT32:
        return pa.array(values, pa.int32())
    if min(known) in _INT64 and max(known) in _INT64:
        return pa.array(values, pa.int64())
    return None
