"""Parentheses directly inside of parentheses, as generated SQL has them.

The parser needs a part of Python's stack for each pair, so it cannot parse many.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

__all__ = ["without_idle_brackets"]


def without_idle_brackets(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, where no parentheses contain only one pair, which contains only one, and so on.

    Of such a chain three pairs remain: the outer ones can be a part of the syntax, as in a call of
    a function or a subquery. More pairs never change what SQL means.
    """
    closing = _closing(tokens)
    dropped: set[int] = set()
    for start, end in closing.items():
        chain = all(
            closing.get(start + inner) == end - inner and closing.get(start - 1) == end + 1
            for inner in (1, 2)
        )
        if chain:
            dropped |= {start, end}
    return [token for place, token in enumerate(tokens) if place not in dropped]


def _closing(tokens: Sequence[Token]) -> dict[int, int]:
    """The place of the closing parenthesis of each opening one that has one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            opened.append(place)
        elif token.token_type == TokenType.R_PAREN and opened:
            pairs[opened.pop()] = place
    return pairs
