"""The types of a query's parts, computed by sqlglot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from keytide.sql.dialect import Keytide
from keytide.types import Field

__all__ = ["schema_of", "typed"]


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
