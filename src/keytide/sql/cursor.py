"""A walk over the tokens of one statement, with errors that point at the place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from sqlglot import Token, TokenType

from keytide.errors import InvalidError
from keytide.sql.dialect import error_at

__all__ = ["Cursor"]

T = TypeVar("T")


class Cursor:
    """A position before one token of a statement; `text` is the whole SQL text.

    `hints` are the options of `/*+ OPTIONS(...) */`, by the place where what they follow ends.
    """

    def __init__(
        self,
        text: str,
        tokens: Sequence[Token],
        hints: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self.text = text
        self._tokens = tokens
        self._position = 0
        self.hints = dict(hints)

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._position >= len(self._tokens)

    @property
    def start(self) -> int:
        """The place of the next token in the text."""
        if self.at_end:
            return self._tokens[-1].end + 1 if self._tokens else len(self.text)
        return int(self._tokens[self._position].start)

    @property
    def end(self) -> int:
        """The place after the last token."""
        return int(self._tokens[-1].end) + 1

    def rest(self) -> list[Token]:
        """The tokens left, none of them taken."""
        return list(self._tokens[self._position :])

    def peek(self, offset: int = 0) -> str:
        """A coming token as upper-case text, '' after the end and for texts and quoted names."""
        index = self._position + offset
        if index >= len(self._tokens):
            return ""
        token = self._tokens[index]
        is_quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        return "" if is_quoted else str(token.text).upper()

    def accept(self, *words: str) -> bool:
        """Take these words if they come next."""
        if any(self.peek(i) != word for i, word in enumerate(words)):
            return False
        self._position += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Take these words, which must come next."""
        if not self.accept(*words):
            raise self.error(f"expected {' '.join(words)}")

    def expect_end(self) -> None:
        """Refuse what is left over."""
        if not self.at_end:
            raise self.error("expected the end of the statement")
        for place in self.hints:
            raise self.error_at(place, "a hint OPTIONS belongs behind the name of a table to read")

    def take_hints(self) -> dict[int, Mapping[str, str]]:
        """Take the hints of all that is left."""
        return {place: self.hints.pop(place) for place in [*self.hints] if place > self.start}

    def find(self, word: str, *, before: int | None = None) -> int | None:
        """Where a word last stands in the statement, before a place if one is given."""
        starts = [
            int(token.start)
            for token in self._tokens
            if token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
            and str(token.text).upper() == word
            and (before is None or token.start <= before)
        ]
        return starts[-1] if starts else None

    def error_at(self, place: int, message: str) -> InvalidError:
        """An error at a place of the text."""
        return error_at(self.text, place, message)

    def error(self, message: str) -> InvalidError:
        """An error at the next token, naming it."""
        shown = "the end" if self.at_end else repr(self._source())
        return error_at(self.text, self.start, f"{message}, found {shown}")

    def name(self, what: str = "a name") -> str:
        """A plain or quoted name."""
        if self.at_end:
            raise self.error(f"expected {what}")
        token = self._tokens[self._position]
        is_word = token.token_type == TokenType.IDENTIFIER or (
            token.token_type != TokenType.STRING
            and token.text.replace("_", "a").replace("$", "a").isalnum()
        )
        if not is_word:
            raise self.error(f"expected {what}")
        self._position += 1
        return str(token.text)

    def path(self, what: str = "a name") -> tuple[str, ...]:
        """Names with dots between them."""
        names = [self.name(what)]
        while self.accept("."):
            names.append(self.name(what))
        return tuple(names)

    def path_before_last(self) -> tuple[str, ...]:
        """The names of a path but the last, which is left to be taken."""
        names = []
        while self.peek(1) == ".":
            names.append(self.name())
            self.expect(".")
        return tuple(names)

    def string(self, what: str = "a text in quotes") -> str:
        """A text in quotes."""
        if not self.is_string():
            raise self.error(f"expected {what}")
        value = str(self._tokens[self._position].text)
        self._position += 1
        return value

    def argument_name(self) -> str | None:
        """Take `name =>` if it comes next."""
        if self.peek(1) != "=>":
            return None
        name = self.name("an argument's name")
        self._position += 1
        return name

    def skip(self) -> None:
        """Take all that is left."""
        self._position = len(self._tokens)

    def is_string(self) -> bool:
        """Whether a text in quotes comes next."""
        return not self.at_end and self._tokens[self._position].token_type == TokenType.STRING

    def listed(self, item: Callable[[], T]) -> list[T]:
        """Items in brackets with commas between them."""
        self.expect("(")
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(")")
        return items

    def until(self, *stops: str) -> str:
        """The text up to one of these words or a comma or bracket outside of all brackets."""
        start, end, depth = self.start, self.start, 0
        while not self.at_end:
            word = self._tokens[self._position].text
            if depth == 0 and (self.peek() in stops or word in (",", ")")):
                break
            if self._tokens[self._position].token_type != TokenType.STRING:
                depth += sum(word.count(c) for c in "(<") - sum(word.count(c) for c in ")>")
            end = int(self._tokens[self._position].end) + 1
            self._position += 1
        return self.text[start:end]

    def _source(self) -> str:
        token = self._tokens[self._position]
        return self.text[int(token.start) : int(token.end) + 1]
