"""Names that a SELECT gives to its columns, for engines where later columns cannot use them."""

from __future__ import annotations

from sqlglot import exp

__all__ = ["without_aliases"]


def without_aliases(node: exp.Expr) -> exp.Expr:
    """Replace the names that a SELECT itself defines, which begin with `$`, by their expressions.

    REQUIRES: no column of its tables has such a name.
    """
    if isinstance(node, exp.Select):
        known: dict[str, exp.Expr] = {}
        for each in node.expressions:
            for column in list(each.find_all(exp.Column)):
                if not column.table and column.name in known:
                    column.replace(exp.paren(known[column.name].copy()))
            if isinstance(each, exp.Alias) and each.alias.startswith("$"):
                known[each.alias] = each.this
    return node
