"""Tokens and trees of SQL text, and their types, with errors that point at the position.

A `Cursor` reads the tokens of one statement. sqlglot computes the types of a query's parts.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from keytide.base.row_engine import PARSER_SLIPS, keytide_dialect
from keytide.errors import InvalidError
from keytide.sql.statements import Query
from keytide.sql.token_account import unused_token, without_repeated_parentheses
from keytide.types import Field

# -- the SQL dialect -------------------------------------------------------------------------------


Keytide = keytide_dialect()


class SparkText(Spark):
    """The SQL generator for Spark."""

    Generator = Keytide.generator_class  # type: ignore[assignment]  # that of Spark with one word


def tokenize(text: str) -> list[Token]:
    """The tokens of a text. Raises `InvalidError` for text that is not SQL."""
    try:
        return list(Keytide().tokenize(text))
    except SqlglotError as error:
        raise InvalidError(
            f"the SQL text cannot be tokenized; look for an unclosed quote or comment: {error}"
        ) from error


def parse_tree(text: str, tokens: Sequence[Token], start: int, into: Any = None) -> exp.Expr:
    """The tree of some tokens of an SQL text. The tokens begin at position `start`.

    Positions in the tree and in errors refer to the whole text. Raises `InvalidError`, pointing at
    the position that does not parse.
    """
    try:
        tree = _parsed(text, tokens, into)
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        what = found.get("description") or str(error).splitlines()[0]
        for pattern, words in _OF_CODE.items():
            what = re.sub(pattern, words, what, flags=re.DOTALL)
        message = f"the SQL text cannot be parsed here: {what.rstrip('.')}"
        raise error_at(text, _place(text, found, start), message) from error
    except SqlglotError as error:
        what = str(error).splitlines()[0]
        raise error_at(text, start, f"the SQL text cannot be parsed from here: {what}") from error
    except PARSER_SLIPS as error:
        # Internal errors of the parser, for input that is not a statement.
        raise error_at(text, start, "the SQL text cannot be parsed from here") from error
    if tree is None:
        raise error_at(text, start, "the SQL text cannot be parsed here: expected an expression")

    def parse(other: Sequence[Token]) -> exp.Expr | None:
        try:
            return _parsed(text, other, into)
        except (SqlglotError, *PARSER_SLIPS):
            return None

    # Refuse tokens that the parser consumed without using them in its tree.
    unused = unused_token(tokens, tree, parse)
    if unused is not None:
        index, why = unused
        raise error_at(text, int(tokens[index].start), why)
    return tree


def _parsed(text: str, tokens: Sequence[Token], into: Any) -> exp.Expr | None:
    parser, part = Keytide().parser(), without_repeated_parentheses(tokens)
    [tree] = parser.parse_into(into, part, text) if into else parser.parse(part, text)
    return tree


def _place(text: str, found: Mapping[str, Any], start: int) -> int:
    """The start of the word that a parser error is about, `start` if it names none."""
    line, column = found.get("line"), found.get("col")
    if line is None or column is None:
        return start
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    # sqlglot counts to the end of the word that it highlights.
    return max(0, before + int(column) - len(found.get("highlight") or "x"))


@contextmanager
def parser_errors() -> Iterator[None]:
    """A context for walking trees with sqlglot's own passes.

    For some invalid statements the parser creates trees that these passes cannot handle. Raises
    `InvalidError` for errors in them.
    """
    try:
        yield
    except (SqlglotError, *PARSER_SLIPS) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_of_parser = str(frame.f_globals.get("__name__")).partition(".")[0] in (
            "sqlglot",
            "sqlglotc",
        )
        if not is_of_parser:
            raise
        raise InvalidError(
            "a part of the statement cannot be interpreted; write it in a simpler form"
        ) from error


def is_plain_name(text: str) -> bool:
    """Whether a word can be the database in a table name without quotes."""
    try:
        tree = parse_tree(query := f"SELECT a FROM {text}.b", tokenize(query), 0)
    except InvalidError:
        return False
    return [table.db for table in tree.find_all(exp.Table)] == [text]


def error_at(text: str, offset: int, message: str) -> InvalidError:
    """An error that shows the line of the text and points at the position."""
    offset = min(offset, len(text))
    line_start = text.rfind("\n", 0, offset) + 1
    line_end = text.find("\n", offset)
    line = text[line_start : None if line_end < 0 else line_end]
    number = text.count("\n", 0, offset) + 1
    pointer = " " * (offset - line_start) + "^"
    return InvalidError(
        f"line {number}, column {offset - line_start + 1}: {message}\n  {line}\n  {pointer}"
    )


_OF_CODE = {
    r"'SENTINEL'": "the end",
    r"<Token .*?, text: (.*?), line: .*>": r"'\1'",
    r"Required keyword: '.*' missing for <class '.*\.(\w+)'>": "\\1 is not complete",
}
"""SQL words for the names from the parser's code in its messages."""


# -- the cursor over the tokens of one statement ---------------------------------------------------


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

        # Tokens, with those split that the tokenizer joins, as in PRIMARY KEY.
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
        self._tokens = words
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
        if not self._is_next(words):
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

    def list_of(self, item: Callable[[], T]) -> list[T]:
        """Items in brackets, separated by commas."""
        self.expect("(")
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(")")
        return items

    def one_or_list_of(self, item: Callable[[], T]) -> list[T]:
        """One item, or several in brackets."""
        return self.list_of(item) if self.peek() == "(" else [item()]

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
        while not self.at_end and (depth or not any(map(self._is_next, phrases))):
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
        end = start + len(self.until())
        return parse_tree(self.text, [t for t in self._whole if start <= t.start < end], start)

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

    def _is_next(self, words: Sequence[str]) -> bool:
        return all(self.peek(i) == word for i, word in enumerate(words))

    def _source(self, token: Token) -> str:
        return self.text[int(token.start) : int(token.end) + 1]


_ALL_FROM = (TokenType.SELECT, TokenType.STAR, TokenType.FROM)
_ROUND = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
_DEPTH = {TokenType.L_PAREN: 1, TokenType.LT: 1, TokenType.R_PAREN: -1, TokenType.GT: -1}


_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
_JOINED = re.compile(r"[A-Za-z]+(\s+[A-Za-z]+)+")
_WORD = re.compile(r"\S+")


# -- types of expressions --------------------------------------------------------------------------


def schema_of(columns: Mapping[str, Mapping[str, str]]) -> MappingSchema:
    """The schema for sqlglot's passes: table columns and their types."""
    schema = MappingSchema(dialect=Keytide)
    for table, types in columns.items():
        # As identifiers, because the parser would read a string such as `$row` as a parameter.
        named: dict[Any, str] = {
            exp.to_identifier(name, quoted=True): types[name] for name in types
        }
        schema.add_table(table, named, dialect=Keytide)
    return schema


def typed(tree: exp.Expr, fields: Mapping[str, Sequence[Field]]) -> exp.Expr | None:
    """A copy of a query over views with these columns, whose nodes have types.

    None if the types cannot be computed. Then the engine reports what is wrong.
    """
    schema = schema_of(
        {view: {f.name: f.type.with_nullable(True).sql() for f in fields[view]} for view in fields}
    )
    try:
        qualified = qualify(
            tree.copy(), dialect=Keytide, schema=schema, quote_identifiers=False,
            validate_qualify_columns=False, isolate_tables=False,
        )  # fmt: skip
        return annotate_types(qualified, schema=schema, dialect=Keytide)
    except SqlglotError:
        return None
