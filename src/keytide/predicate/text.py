"""Formats a predicate as a string for people. `where` parses it into the same predicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keytide.predicate.literals import Literal, literal_of
from keytide.predicate.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate
from keytide.types import Field, quoted

__all__ = ["text_of"]


def text_of(predicate: Predicate, fields: Sequence[Field]) -> str:
    """A predicate over columns as a condition of `Table.scan(where=...)`."""
    by_name = {field.name: field for field in fields}

    def literal(column: str, value: Any) -> str:
        return str(literal_of(value, by_name[column]))

    def term(node: Comparison | In | IsNull | Like, no: str = "") -> str:
        name = quoted(node.column)
        if isinstance(node, Comparison):
            return f"{name} {node.operator} {literal(node.column, node.value)}"
        if isinstance(node, In):
            return f"{name} {no}IN ({', '.join(literal(node.column, v) for v in node.values)})"
        if isinstance(node, IsNull):
            return f"{name} IS {no}NULL"
        return f"{name} {no}LIKE {Literal('TEXT', node.pattern)}"

    def whole(node: Predicate) -> str:
        if isinstance(node, And | Or):
            return (" AND " if isinstance(node, And) else " OR ").join(map(part, node.terms))
        if not isinstance(node, Not):
            return term(node)
        if isinstance(node.term, In | IsNull | Like):
            return term(node.term, "NOT ")
        return f"NOT ({whole(node.term)})"

    def part(node: Predicate) -> str:
        return f"({whole(node)})" if isinstance(node, And | Or) else whole(node)

    return whole(predicate)
