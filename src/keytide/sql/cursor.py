"""A cursor over the tokens of one statement, with errors that point at the position."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from sqlglot import Token, TokenType, exp

from keytide.errors import InvalidError
from keytide.sql.dialect import error_at, parse_tree
from keytide.sql.statements import Query

__all__ = ["Cursor"]

T = TypeVar("T")


class Cursor:
    """A position before one token of a statement. `text` is the whole SQL text.

    `hints` are the options of `/*+ OPTIONS(...) */`, by the position where the token before them
    ends.
    """

    def __init__(
        self,
        text: str,
        tokens: Sequence[Token],
        hints: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self.text = text
        self._whole = tokens
        self._tokens = _words(text, tokens)
        self._position = 0
        self.hints = dict(hints)

    @property
    def at_end(self) -> bool:
        """Whether all tokens were consumed."""
        return self._position >= len(self._tokens)

    @property
    def start(self) -> int:
        """The position of the next token in the text."""
        return self.end if self.at_end else int(self._tokens[self._position].start)

    @property
    def end(self) -> int:
        """The position after the last token."""
        return int(self._tokens[-1].end) + 1 if self._tokens else len(self.text)

    def peek(self, offset: int = 0) -> str:
        """A following token in upper case, '' after the end."""
        index = self._position + offset
        return self._source(self._tokens[index]).upper() if index < len(self._tokens) else ""

    def accept(self, *words: str) -> bool:
        """Consume these words if they come next."""
        if not self._comes(words):
            return False
        self._position += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume these words, which must come next."""
        if not self.accept(*words):
            raise self.error(f"expected {' '.join(words)}")

    def expect_end(self) -> None:
        """Refuse remaining tokens."""
        if not self.at_end:
            raise self.error("expected the end of the statement")
        for place in self.hints:
            raise self.error_at(place, "a hint OPTIONS must follow the name of a table to read")

    def find(self, word: str, *, before: int | None = None) -> int | None:
        """The last position of a word in the statement, optionally before a given position."""
        found = [int(t.start) for t in self._tokens if self._source(t).upper() == word]
        return max((start for start in found if before is None or start <= before), default=None)

    def error_at(self, place: int, message: str) -> InvalidError:
        """An error at a position of the text."""
        return error_at(self.text, place, message)

    def error(self, message: str) -> InvalidError:
        """An error at the next token, which names it."""
        shown = "the end" if self.at_end else repr(self._source(self._tokens[self._position]))
        return self.error_at(self.start, f"{message}, found {shown}")

    # -- names and strings -------------------------------------------------------------------------

    def name(self, what: str = "a name") -> str:
        """A plain or quoted name."""
        token = None if self.at_end else self._tokens[self._position]
        if token is not None and token.token_type == TokenType.IDENTIFIER:
            found = str(token.text)
        elif token is not None and re.fullmatch(r"[\w$]+", self._source(token)):
            found = self._source(token)
        else:
            raise self.error(f"expected {what}")
        self._position += 1
        return found

    def path(self, what: str = "a column") -> tuple[str, ...]:
        """Names with dots between them."""
        names = [self.name(what)]
        while self.accept("."):
            names.append(self.name(what))
        return tuple(names)

    def table(self) -> str:
        """The name of a table, with its database if given."""
        return ".".join(self.path("a table name"))

    def is_string(self) -> bool:
        """Whether a quoted string comes next."""
        return not self.at_end and self._tokens[self._position].token_type == TokenType.STRING

    def string(self) -> str:
        """A quoted string."""
        if not self.is_string():
            raise self.error("expected a quoted string")
        self._position += 1
        return str(self._tokens[self._position - 1].text)

    # -- composite parts ---------------------------------------------------------------------------

    def listed(self, item: Callable[[], T]) -> list[T]:
        """Items in brackets, separated by commas."""
        self.expect("(")
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(")")
        return items

    def one_or_listed(self, item: Callable[[], T]) -> list[T]:
        """One item, or several in brackets."""
        return self.listed(item) if self.peek() == "(" else [item()]

    def until(self, *stops: str) -> str:
        """The text up to one of these words, or a comma or bracket outside of all brackets."""
        start, end, depth = self.start, self.start, 0
        while not self.at_end and (depth or self.peek() not in (*stops, ",", ")")):
            token = self._tokens[self._position]
            depth += _DEPTH.get(token.token_type, 0)
            end = int(token.end) + 1
            self._position += 1
        return self.text[start:end]

    def up_to(self, *stops: str) -> str:
        """The text up to one of these phrases outside of parentheses, or to the end."""
        phrases = [stop.split() for stop in stops]
        start, end, depth = self.start, self.start, 0
        while not self.at_end and (depth or not any(map(self._comes, phrases))):
            token = self._tokens[self._position]
            depth += _ROUND.get(token.token_type, 0)
            end = int(token.end) + 1
            self._position += 1
        return self.text[start:end]

    def all_of(self, *stops: str) -> Query:
        """All rows of the table, or of the query in parentheses, that precedes these words."""
        start, hints = self.start, [*self.hints]
        end = start + len(self.up_to(*stops))
        head = [Token(kind, kind.name, start=start, end=start) for kind in _ALL_FROM]
        tokens = [token for token in self._whole if start <= token.start < end]
        tree = parse_tree(self.text, [*head, *tokens], start)
        return Query(tree, self.text, {p: self.hints.pop(p) for p in hints if start < p <= end})

    def bracketed(self) -> str:
        """The text inside the brackets that come next, including nested brackets."""
        self.expect("(")
        start, depth = self.start, 1
        while not self.at_end:
            token = self._tokens[self._position]
            depth += _ROUND.get(token.token_type, 0)
            self._position += 1
            if not depth:
                return self.text[start : int(token.start)].strip()
        raise self.error("expected )")

    def value(self) -> exp.Expr:
        """An expression up to a comma or bracket outside of all brackets."""
        start = self.start
        return self._tree(start, start + len(self.until()))

    def rest(self) -> list[Token]:
        """The remaining tokens, without consuming them."""
        return self._tokens[self._position :]

    def tree(self, *second: str) -> exp.Expr:
        """The remaining tokens as a tree, without consuming them.

        The words `second`, which follow the first word, are left out.
        """
        tokens = self._tokens[self._position + 1 :][: len(second)]
        left_out = {int(token.start) for token in tokens}
        rest = [t for t in self._whole if t.start >= self.start and t.start not in left_out]
        return parse_tree(self.text, rest, self.start)

    def query(self, tree: exp.Expr) -> Query:
        """A query from a tree of all remaining tokens, which are consumed with their hints."""
        hints = {place: self.hints.pop(place) for place in [*self.hints] if place > self.start}
        self.skip()
        return Query(tree, self.text, hints)

    def skip(self) -> None:
        """Consume all remaining tokens."""
        self._position = len(self._tokens)

    def _tree(self, start: int, end: int) -> exp.Expr:
        return parse_tree(self.text, [t for t in self._whole if start <= t.start < end], start)

    def _comes(self, words: Sequence[str]) -> bool:
        return all(self.peek(i) == word for i, word in enumerate(words))

    def _source(self, token: Token) -> str:
        return self.text[int(token.start) : int(token.end) + 1]


_ALL_FROM = (TokenType.SELECT, TokenType.STAR, TokenType.FROM)
_ROUND = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
_DEPTH = {TokenType.L_PAREN: 1, TokenType.LT: 1, TokenType.R_PAREN: -1, TokenType.GT: -1}


_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
_JOINED = re.compile(r"[A-Za-z]+(\s+[A-Za-z]+)+")
_WORD = re.compile(r"\S+")


def _words(text: str, tokens: Sequence[Token]) -> list[Token]:
    """Tokens, with those split that the tokenizer joins, as in PRIMARY KEY."""
    words: list[Token] = []
    for token in tokens:
        start, end = int(token.start), int(token.end) + 1
        if (
            " " not in token.text
            or token.token_type in _QUOTED
            or not _JOINED.fullmatch(text, start, end)
        ):
            words.append(token)
            continue
        words += [
            Token(TokenType.VAR, word.group(), start=word.start(), end=word.end() - 1)
            for word in _WORD.finditer(text, start, end)
        ]
    return words
