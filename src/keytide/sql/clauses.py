"""The clauses of a parsed statement: each is taken or refused, and none is ignored.

The parser understands more SQL than is carried out here. So the clauses of a parsed statement are
taken one by one, and any clause that is left over is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlglot import exp

from keytide.errors import InvalidError
from keytide.sql.cursor import Cursor

__all__ = ["Clauses", "clauses"]


class Clauses:
    """The clauses of one node that have not been taken yet."""

    def __init__(self, node: exp.Expr, cursor: Cursor, what: str) -> None:
        self._node = node
        self._cursor = cursor
        self._what = what
        self._left = {name: value for name, value in node.args.items() if _is_given(value)}

    def take(self, name: str) -> Any:
        """The clause that the parser keeps under this name, None where there is none."""
        return self._left.pop(name, None)

    def refuse_rest(self) -> None:
        """Raise `InvalidError` at the first clause that nobody took."""
        for name, value in self._left.items():
            raise self.refused(name, value)

    def refused(self, name: str, value: Any) -> InvalidError:
        """An error at a clause, naming it."""
        word = name.strip("_").upper().replace("_", " ")
        known = [place for node in _nodes(value) if (place := _start(node)) is not None]
        place = self._cursor.find(word, before=min(known, default=None))
        return self._cursor.error_at(
            place if place is not None else min(known, default=_start(self._node) or 0),
            f"{self._what} takes no {word} clause; nothing was done",
        )


@contextmanager
def clauses(node: exp.Expr, cursor: Cursor, what: str) -> Iterator[Clauses]:
    """The clauses of a node, all of which the block has to take.

    Raises `InvalidError` pointing at the first one that it leaves.
    """
    found = Clauses(node, cursor, what)
    yield found
    found.refuse_rest()


def _is_given(value: Any) -> bool:
    # The parser notes what is absent as None, False or [].
    return value is not None and value is not False and value != []


def _nodes(value: Any) -> Iterator[exp.Expr]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, exp.Expr):
            yield from item.walk()


def _start(node: exp.Expr) -> int | None:
    start: int | None = node.meta.get("start") if node.meta else None
    return start
