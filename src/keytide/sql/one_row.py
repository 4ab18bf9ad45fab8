"""Expressions about one row: what DELETE, UPDATE and MERGE may decide and compute by."""

from __future__ import annotations

from sqlglot import exp

from keytide.sql.cursor import Cursor

__all__ = ["refuse_many_rows"]

_SPREADING = {"json_tuple", "inline_outer", "generate_subscripts", "variant_explode",
              "variant_explode_outer"}  # fmt: skip
"""Functions that make several rows of one and that the parser does not tell from others."""


def refuse_many_rows(tree: exp.Expr | None, cursor: Cursor) -> None:
    """Raise `InvalidError` for what takes many rows or makes many rows, outside of a query.

    An engine sees the rows of a table in parts, so a window would end where a part does.
    """
    for node in () if tree is None else tree.walk(prune=lambda n: isinstance(n, exp.Query)):
        what = _many(node)
        if what is not None:
            starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
            name = node.sql(dialect="spark")
            raise cursor.error_at(
                min(starts, default=cursor.start),
                f"{name if len(name) < _LONG else name[:_LONG] + '...'} {what}, and DELETE, UPDATE "
                f"and MERGE take each row by itself; put it into a query, such as "
                f"(SELECT max(n) FROM the_table)",
            )


_LONG = 60


def _many(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Window):
        return "goes over many rows"
    if isinstance(node, exp.AggFunc):
        return "is about many rows"
    is_spreading = isinstance(node, exp.Anonymous) and node.name.lower() in _SPREADING
    if is_spreading or (isinstance(node, exp.UDTF) and not isinstance(node, exp.Values)):
        return "makes many rows of one"
    return None
