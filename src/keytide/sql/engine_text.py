"""Generates the text of a query for an engine without losing any clause.

sqlglot's generator warns about some clauses that a dialect lacks, and drops others silently. In
both cases the engine would run a different query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.errors import UnsupportedError

from keytide.errors import InvalidError
from keytide.sql.dialect import Keytide, SparkText

__all__ = ["LostClauseError", "engine_text"]


class LostClauseError(InvalidError):
    """A clause that the engine's dialect cannot express. `node` is the part that contains it."""

    def __init__(self, message: str, node: exp.Expr) -> None:
        super().__init__(message)
        self.node = node


def engine_text(tree: exp.Expr, dialect: str) -> str:
    """The text of a query in an engine's dialect.

    Raises `LostClauseError` for a clause that the dialect cannot express.
    """
    try:
        text = _text(tree, dialect)
    except UnsupportedError as error:
        node = _smallest(tree, dialect)
        place = f": {shown}" if (shown := _shown(node)) else ""
        raise LostClauseError(f"{_sentence(error)} in {dialect}{place}", node) from error
    except Exception as error:  # generators fail on functions with too few arguments
        raise InvalidError(
            f"the query cannot be written for {dialect}; give all arguments of its functions: "
            f"{error}"
        ) from error
    for node, name in _optional(tree):
        if _is_lost(node, name, dialect):
            word = name.strip("_").upper().replace("_", " ")
            raise LostClauseError(f"{dialect} does not support {word} in {_shown(node)}", node)
    return text


def _text(tree: exp.Expr, dialect: str) -> str:
    known = SparkText if dialect == "spark" else dialect
    return tree.sql(dialect=known, unsupported_level=ErrorLevel.RAISE, comments=False)


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect=Keytide, unsupported_level=ErrorLevel.IGNORE, comments=False)


def _sentence(error: UnsupportedError) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _smallest(tree: exp.Expr, dialect: str) -> exp.Expr:
    """The innermost part that the dialect cannot express."""
    for node in reversed(list(tree.bfs())):
        with suppress(Exception):  # a part on its own may have no text
            try:
                _text(node, dialect)
            except UnsupportedError:
                return node
    return tree


def _optional(tree: exp.Expr) -> Iterator[tuple[exp.Expr, str]]:
    """The optional arguments of query parts, with the part. Those that are never lost are skipped.

    Flags of functions and operators are set by the parser, not by the user.
    """
    for node in tree.walk():
        is_clause = not isinstance(node, exp.Func | exp.Binary | exp.Cast | exp.DataType)
        for name, value in node.args.items():
            if name in _KEPT or node.arg_types.get(name) or not _is_given(value):
                continue
            if (is_clause or isinstance(value, exp.Expr)) and not _is_note(node, name, value):
                yield node, name


_KEPT = frozenset(
    ("this", "expression", "expressions", "quoted", "is_string", "table", "db", "alias", "from_",
     "with_", "where", "joins", "group", "having", "order", "limit", "offset", "distinct")
)  # fmt: skip


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def _is_note(node: exp.Expr, name: str, value: Any) -> bool:
    """Whether the parser added this and not the user, or it states the default."""
    if isinstance(node, exp.Join):
        return name == "side" and value == "LEFT" and node.kind in ("SEMI", "ANTI")
    if isinstance(node, exp.Fetch):
        return name == "limit_options" and not (value.args["percent"] or value.args["with_ties"])
    if isinstance(node, exp.SHA2):
        return name == "length" and value.name in ("0", "256")
    return (type(node), name) in _NOTES


_NOTES = {
    (exp.Pivot, "columns"),
    (exp.Pivot, "pivot_column_naming"),
    (exp.ArraySort, "nulls_first"),
    (exp.Bracket, "safe"),
    (exp.Lateral, "view"),  # the spelling of an UNNEST
}


def _is_lost(node: exp.Expr, name: str, dialect: str) -> bool:
    """Whether the text of a part stays the same without this argument, or with another value."""
    value = node.args[name]
    full = _text_or_none(node, dialect)
    try:
        node.args[name] = None
        if full is None or _text_or_none(node, dialect) != full:
            return False
        if isinstance(value, str | exp.Expr):  # it may be just the default
            node.args[name] = "probe" if isinstance(value, str) else exp.column("probe")
            return _text_or_none(node, dialect) == full
        return True
    finally:
        node.args[name] = value


def _text_or_none(node: exp.Expr, dialect: str) -> str | None:
    """The text of a part, None if there is none."""
    try:
        return _text(node, dialect)
    except Exception:  # a generator can fail on a part that lacks something
        return None
