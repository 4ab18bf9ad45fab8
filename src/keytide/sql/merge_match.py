"""How the ON of a MERGE matches rows: which target columns equal which source columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from keytide.predicate.values.spellings import has_one_spelling
from keytide.sql.relation import Relation
from keytide.types import Field

__all__ = ["Match", "match_of"]


_KINDS = (pa.types.is_integer, lambda type_: type_ in (pa.string(), pa.large_string()))


@dataclass(frozen=True)
class Match:
    """Equal columns: each target column with its source column.

    `view` is that of a source that is a table. The types of other sources are unknown until they
    are computed. For a table, only equalities on which all engines agree are included. `is_all`
    says that ON has no other condition.
    """

    columns: Mapping[str, str]
    is_all: bool = False
    view: str | None = None

    def comparable(
        self, target: Mapping[str, pa.DataType], source: Mapping[str, pa.DataType]
    ) -> dict[str, str]:
        """The equalities of columns whose types all engines compare in the same way.

        For other types, values that look different can be equal.
        """
        return {
            name: other
            for name, other in self.columns.items()
            if any(is_kind(target[name]) and is_kind(source[other]) for is_kind in _KINDS)
        }

    def keeps(self, column: str, value: exp.Expr, source: str) -> bool:
        """Whether the value for a column is the one it is matched by. `source` is the alias."""
        return (
            self.view is not None
            and isinstance(value, exp.Column)
            and value.table.lower() == source.lower()
            and self.columns.get(column, "").lower() == value.name.lower()
        )


def match_of(
    join: exp.Join, target: str, fields: Sequence[Field], relations: Sequence[Relation]
) -> Match:
    """What is known about a join of a target, given by its alias, with a source."""
    source, condition = join.this, join.args["on"].unnest()
    relation = next((r for r in relations if r.view == source.name), None)
    terms = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
    pairs = _equal_columns(terms, target, source.alias_or_name, _by_name(fields))
    if isinstance(source, exp.Subquery | exp.Values):
        return Match({field.name: other for field, other in pairs})
    if not isinstance(source, exp.Table) or relation is None or source.args.get("sample"):
        return Match({})
    others = _by_name(relation.fields)
    found = {
        field.name: others[other.lower()].name
        for field, other in pairs
        if other.lower() in others and _is_exact(field, others[other.lower()])
    }
    return Match(found, len(found) == len(terms), relation.view)


def _equal_columns(
    terms: Sequence[exp.Expr], target: str, source: str, fields: Mapping[str, Field]
) -> Iterator[tuple[Field, str]]:
    """Pairs of equal target and source columns whose types have only one representation."""
    for term in terms:
        plain = term.unnest()
        columns = (plain.this, plain.expression) if isinstance(plain, exp.EQ) else ()
        by_side = {c.table.lower(): c.name for c in columns if isinstance(c, exp.Column)}
        field = fields.get(by_side.get(target.lower(), "").lower())
        if field is not None and source.lower() in by_side and has_one_spelling(field.type):
            yield field, by_side[source.lower()]


def _is_exact(one: Field, other: Field) -> bool:
    are_texts = {field.type.root == "VARCHAR" for field in (one, other)}
    return len(are_texts) == 1 and all(has_one_spelling(field.type) for field in (one, other))


def _by_name(fields: Sequence[Field]) -> dict[str, Field]:
    return {field.name.lower(): field for field in fields}
