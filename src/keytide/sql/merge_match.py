"""How the ON of a MERGE matches rows: by which columns of the target, and of the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from keytide.sql.relation import Relation
from keytide.table.values.spellings import has_one_spelling
from keytide.types import Field

__all__ = ["Match", "match_of"]


@dataclass(frozen=True)
class Match:
    """Equalities of columns, by the target's, each with the one of the source.

    Only such as all engines agree on; `is_all` says that ON asks for nothing else. `view` is the
    source's, without which nothing is known.
    """

    columns: Mapping[str, str]
    is_all: bool = False
    view: str | None = None

    def keeps(self, column: str, value: exp.Expr, source: str) -> bool:
        """Whether a value for a column is the one that it is matched by; `source` is the alias."""
        return (
            isinstance(value, exp.Column)
            and value.table.lower() == source.lower()
            and self.columns.get(column, "").lower() == value.name.lower()
        )


def match_of(
    join: exp.Join, target: str, fields: Sequence[Field], relations: Sequence[Relation]
) -> Match:
    """What is known of a bound join of a target, by its alias, with the table on its other side."""
    source = join.this
    relation = next((r for r in relations if r.view == source.name), None)
    if not isinstance(source, exp.Table) or relation is None or source.args.get("sample"):
        return Match({})
    condition = join.args["on"].unnest()
    terms = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
    sides = {
        target.lower(): _by_name(fields),
        source.alias_or_name.lower(): _by_name(relation.fields),
    }
    found = list(_equalities(terms, sides, target.lower()))
    return Match(dict(found), len(found) == len(terms) == len(dict(found)), relation.view)


def _equalities(
    terms: Sequence[exp.Expr], sides: Mapping[str, Mapping[str, Field]], target: str
) -> Iterator[tuple[str, str]]:
    for term in terms:
        plain = term.unnest()
        columns = [c for c in (plain.this, plain.expression) if isinstance(c, exp.Column)]
        by_side = {column.table.lower(): column for column in columns}
        if not isinstance(plain, exp.EQ) or by_side.keys() != sides.keys():
            continue
        one, other = (
            sides[side].get(by_side[side].name.lower()) for side in sorted(sides, key=target.__ne__)
        )
        if one is not None and other is not None and _is_exact(one, other):
            yield one.name, other.name


def _is_exact(one: Field, other: Field) -> bool:
    are_texts = {field.type.root == "VARCHAR" for field in (one, other)}
    return len(are_texts) == 1 and all(has_one_spelling(field.type) for field in (one, other))


def _by_name(fields: Sequence[Field]) -> dict[str, Field]:
    return {field.name.lower(): field for field in fields}
