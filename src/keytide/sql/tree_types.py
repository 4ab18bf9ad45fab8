"""The types of a query's parts, as the parser's own passes work them out."""

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
    """What passes over trees know of tables: their columns and the types of these."""
    schema = MappingSchema(dialect=Keytide)
    for table, types in columns.items():
        # As identifiers: of a text such as `$row` the parser would make a parameter called `row`.
        named: dict[Any, str] = {
            exp.to_identifier(name, quoted=True): types[name] for name in types
        }
        schema.add_table(table, named, dialect=Keytide)
    return schema


def typed(tree: exp.Expr, fields: Mapping[str, Sequence[Field]]) -> exp.Expr | None:
    """A copy of a query over views with these columns whose nodes say their types.

    None where they cannot be told; the engine will say what is wrong then.
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
