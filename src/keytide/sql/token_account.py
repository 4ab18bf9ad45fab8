"""Checks that a parsed tree uses every token of its text.

sqlglot's parser drops parts of some statements: from `SET a = 1 SET b = 2` all but the last one,
from `FROM u VALUES (1)` the table. So each word of a text is looked up in the tree, and a missing
word is tested: if changing this word alone gives the same tree, the parser did not use the word.
Only the test refuses a text. The lookup just saves tests.

Parentheses directly inside of parentheses, as generated SQL has them, are removed before. The
parser needs a part of Python's stack for each pair, so it cannot parse many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache

from sqlglot import Token, TokenType, exp

# -- unused tokens ---------------------------------------------------------------------------------


_Parse = Callable[[Sequence[Token]], "exp.Expr | None"]


def unused_token(tokens: Sequence[Token], tree: exp.Expr, parse: _Parse) -> tuple[int, str] | None:
    """The position of the first word that the tree does not depend on, and what is wrong with it.

    `parse` creates a tree from tokens, or None if they do not parse.
    """
    tried: Counter[tuple[TokenType, ...]] = Counter()
    for index in _doubtful(tokens, tree):
        alike = tuple(token.token_type for token in tokens[max(0, index - 1) : index + 2])
        tried[alike] += 1
        if tried[alike] <= _TRIALS and any(parse(t) == tree for t in _others(tokens, index)):
            break
    else:
        return None

    # Report where the clause of an unused word is repeated, otherwise the word itself.
    clause = next((i for i in _level(tokens, index, -1) if tokens[i].token_type in _CLAUSES), None)
    if clause is not None:
        kind = tokens[clause].token_type
        for step, origin in ((1, index), (-1, clause - 1)):
            again = next(
                (i for i in _level(tokens, origin, step) if tokens[i].token_type is kind), None
            )
            if again is not None:
                word = " ".join(tokens[clause].text.upper().split())
                return max(clause, again), f"{word} is given twice"
    return index, f"{tokens[index].text!r} has no effect here"


_TRIALS = 8
"""How many words with the same kinds of neighbors are tested, which limits the cost."""


def _doubtful(tokens: Sequence[Token], tree: exp.Expr) -> Iterator[int]:
    """Words that occur less often in the tree than in the text, and symbols without effect."""
    words = [_TYPES.get(token.token_type) or token.text.upper() for token in tokens]
    missing = Counter(words)
    missing.subtract(_tree_words(tree))
    types = [None, *(token.token_type for token in tokens), None]
    for index, word in enumerate(words):
        before, kind, after = types[index : index + 3]
        if kind is TokenType.COMMA:
            is_doubtful = after in _ENDS or before in _STARTS
        elif kind is TokenType.ALIAS:
            is_doubtful = before in _STARTS
        elif missing[word] > 0 and (kind in _VALUES or _is_wordlike(word)):
            is_name = kind is TokenType.VAR and after is TokenType.L_PAREN
            is_doubtful = not is_name and not _is_length(tokens, index)
        else:
            continue
        if is_doubtful:
            yield index


def _is_length(tokens: Sequence[Token], index: int) -> bool:
    """Whether it is the length of a string type, which no engine applies in a CAST."""
    if index < 2 or tokens[index - 1].token_type is not TokenType.L_PAREN:
        return False
    return tokens[index - 2].token_type in _TEXTS or tokens[index - 2].text.upper() == "VARYING"


def _is_wordlike(word: str) -> bool:
    return word[:1].isalnum() or word[:1] in ("_", "$")


def _others(tokens: Sequence[Token], index: int) -> Iterator[list[Token]]:
    """Statements with another word in this place, and without it unless SQL makes it optional."""
    token, before, after = tokens[index], tokens[:index], tokens[index + 1 :]
    suffix = _VALUES.get(token.token_type)
    if token.token_type not in _SIGNS:
        kind, text = (
            (TokenType.VAR, "zq") if suffix is None else (token.token_type, token.text + suffix)
        )
        yield [*before, Token(kind, text, token.line, token.col, token.start, token.end), *after]
    if suffix is None and token.text.upper() not in _OPTIONAL:
        yield [*before, *after]


def _level(tokens: Sequence[Token], index: int, step: int) -> Iterator[int]:
    """The tokens from one on in a direction, within the same brackets and the same SELECT."""
    depth = 0
    while 0 <= index < len(tokens):
        kind = tokens[index].token_type
        depth += step * ((kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN))
        if depth < 0 or (depth == 0 and kind in _QUERIES):
            return
        if depth == 0:
            yield index
        index += step


_VALUES = {TokenType.IDENTIFIER: "zq", TokenType.STRING: "zq", TokenType.NUMBER: "7",
           TokenType.HEX_STRING: "00"}  # fmt: skip
"""Tokens that are values, with functions that create other values."""

_TEXTS = frozenset({TokenType.CHAR, TokenType.NCHAR, TokenType.VARCHAR, TokenType.NVARCHAR})
_SIGNS = frozenset({TokenType.COMMA, TokenType.ALIAS})
_STARTS = frozenset({None, TokenType.L_PAREN, TokenType.COMMA, TokenType.SELECT, TokenType.DISTINCT,
                     TokenType.ALL, TokenType.L_BRACKET})  # fmt: skip
_QUERIES = frozenset({TokenType.SELECT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT,
                      TokenType.WHEN})  # fmt: skip
_CLAUSES = frozenset({TokenType.SET, TokenType.FROM, TokenType.USING, TokenType.WHERE,
                      TokenType.GROUP_BY, TokenType.HAVING, TokenType.QUALIFY, TokenType.ORDER_BY,
                      TokenType.LIMIT, TokenType.OFFSET, TokenType.RETURNING})  # fmt: skip
_ENDS = frozenset({None, TokenType.R_PAREN, TokenType.R_BRACKET, *_QUERIES, *_CLAUSES})

_TYPES = {kind: kind.name for kind in TokenType if kind.name in exp.DType.__members__}
"""Type names that SQL spells in several ways: STRING is TEXT, and `7L` is a BIGINT."""

_OPTIONAL = frozenset(
    {"ALL", "AND", "ARRAY", "ASC", "BETWEEN", "BOTH", "CURRENT", "DISTINCT", "ESCAPE", "FIRST",
     "FOR", "FROM", "INNER", "INTO", "IS", "LATERAL", "MATCHED", "MATERIALIZED", "NEXT", "ONLY",
     "OUTER", "PERCENT", "PRECISION", "RESPECT", "ROW", "ROWS", "SET", "TABLE", "THEN", "TIME",
     "TO", "TRUE", "USING", "VARYING", "WHERE", "WITH", "WITHOUT", "ZONE"}
)  # fmt: skip
"""Words that SQL makes optional, as in UNION DISTINCT and FETCH FIRST 1 ROW ONLY, or that the
parser does not require, as in `a NOT NULL`, `WHEN a DELETE` and `UPDATE SET *`."""


# -- words of a tree -------------------------------------------------------------------------------


def _tree_words(tree: exp.Expr) -> Counter[str]:
    """The words that a tree contains, or that its nodes are written with."""
    found: list[str] = []
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, exp.Boolean):
            found.append(str(node.this))
            continue
        found += _written_words(type(node))  # type: ignore[arg-type]  # a class, whose own hash is meant
        for value in node.args.values():
            for item in value if type(value) is list else (value,):
                if isinstance(item, exp.Expr):
                    nodes.append(item)
                elif isinstance(item, str):
                    found.append(item)
                elif isinstance(item, Enum):
                    found.append(str(item.value))
    return Counter([text.upper() for text in found])


@cache
def _written_words(kind: type[exp.Expr]) -> tuple[str, ...]:
    names = kind.sql_names() if issubclass(kind, exp.Func) else []
    return (kind.key, *names, *_WRITTEN.get(kind, ()))


_WRITTEN: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Between: ("AND",),
    exp.Case: ("END", "ELSE"),
    exp.Delete: ("FROM",),
    exp.From: ("FROM",),
    exp.Group: ("GROUP BY",),
    exp.If: ("WHEN", "THEN"),
    exp.Insert: ("VALUES",),
    exp.Join: ("ON", "USING"),
    exp.Merge: ("INTO", "USING", "ON"),
    exp.Order: ("ORDER BY",),
    exp.Ordered: ("DESC", "NULLS", "FIRST", "LAST"),
    exp.Union: ("ALL",),
    exp.Update: ("SET",),
    exp.Version: ("OF",),
    exp.When: ("MATCHED", "NOT", "BY", "SOURCE", "AND", "THEN"),
    exp.Window: ("OVER", "PARTITION BY"),
}
"""Words of nodes other than their names and values, for clauses that many statements have."""


# -- repeated parentheses --------------------------------------------------------------------------


def without_repeated_parentheses(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, where no parentheses contain only one pair, which contains only one, and so on.

    Of such a chain three pairs remain: the outer ones can be a part of the syntax, as in a call of
    a function or a subquery. More pairs never change what SQL means.
    """
    # The place of the closing parenthesis of each opening one that has one.
    closing: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            opened.append(place)
        elif token.token_type == TokenType.R_PAREN and opened:
            closing[opened.pop()] = place
    dropped: set[int] = set()
    for start, end in closing.items():
        chain = all(
            closing.get(start + inner) == end - inner and closing.get(start - 1) == end + 1
            for inner in (1, 2)
        )
        if chain:
            dropped |= {start, end}
    return [token for place, token in enumerate(tokens) if place not in dropped]
