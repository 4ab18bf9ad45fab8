"""The query behind a DELETE or an UPDATE: which rows of a target, and their new values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from keytide.dml.attached import AttachedCatalog
from keytide.errors import UnsupportedError
from keytide.sql.assign import stored_values
from keytide.sql.dialect import Keytide, tokenize
from keytide.sql.dml_grammar import TARGET
from keytide.sql.literals import literal_rows
from keytide.sql.pushing import pushed_exactly
from keytide.sql.relation import Relation
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.statements import Query
from keytide.table.conditions.condition import predicate_of
from keytide.types import Field

__all__ = [
    "RowQuery",
    "refused_errors",
    "row_query",
    "split_target",
    "target_of_tree",
]


@dataclass(frozen=True)
class RowQuery:
    """New values of the rows that are meant, and their places, as a query over views.

    `view` is the target's; `bound.relations` are those of the other tables. `updated` has the
    columns that get new values, in the table's order.
    """

    bound: BoundQuery
    view: str
    alias: str
    target: Relation
    table: str
    fields: tuple[Field, ...] = ()

    @property
    def updated(self) -> tuple[str, ...]:
        """The names of the columns that get new values."""
        return tuple(field.name for field in self.fields)

    @property
    def is_all_terms(self) -> bool:
        """Whether the target's terms alone say which rows are meant."""
        where = self.bound.tree.args.get("where")
        if where is None:
            return True
        condition, terms = where.this, self.target.terms
        parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
        fields = {field.name.lower(): field for field in self.target.fields}
        # A term may also be what a part of the condition merely implies.
        return len(parts) == len(terms) and all(pushed_exactly(p, fields) in terms for p in parts)

    @property
    def constants(self) -> pa.Table | None:
        """The new values as one row, None where they are not all plain literals."""
        values = [value.unalias() for value in self.bound.tree.expressions]
        if not all(map(_is_literal, values)):
            return None
        texts = (value.sql(dialect=Keytide) for value in values)
        return literal_rows(tokenize(f"({', '.join(texts)})")) if values else pa.table({})

    def text_for(
        self, dialect: str, passed: Sequence[str], *rewrites: Callable[[exp.Expr], exp.Expr]
    ) -> str:
        """The text of the query for an engine, with some columns of the target behind the values.

        Raises as `BoundQuery.text_for`.
        """
        tree = self.bound.tree.copy()
        columns = [exp.column(name, table=self.alias, quoted=True) for name in passed]
        named = [exp.alias_(c, n, quoted=True) for c, n in zip(columns, passed, strict=True)]
        tree.set("expressions", [*tree.expressions, *named])
        return replace(self.bound, tree=tree).text_for(dialect, *rewrites)

    def stored(self, found: pa.Table) -> list[pa.Array]:
        """The new values as the columns hold them. Raises `InvalidError` for what does not fit."""
        columns = found.columns[: len(self.fields)]
        return stored_values(columns, self.fields, self.table)

    @contextmanager
    def refusing(self, *errors: type[Exception]) -> Iterator[None]:
        """A block whose errors of an engine are told as those of the statement."""
        with refused_errors(self.bound, *errors):
            yield


def _is_literal(value: exp.Expr) -> bool:
    if isinstance(value, exp.Neg):
        value = value.this
    return isinstance(value, exp.Literal | exp.Boolean | exp.Null)


@contextmanager
def refused_errors(bound: BoundQuery, *errors: type[Exception]) -> Iterator[None]:
    """A block in which errors of an engine become `InvalidError`s of a query."""
    try:
        yield
    except errors as error:
        raise bound.refused(str(error).splitlines()[0]) from error


def row_query(
    query: Query,
    catalog: AttachedCatalog,
    table: str,
    values: Sequence[tuple[Field, exp.Expr]] = (),
) -> RowQuery:
    """The query of a statement on one table, with the new values of columns.

    Raises as `bind` does, and as `predicate_of`.
    """
    tree = query.tree.copy()
    alias = target_of_tree(tree).alias_or_name
    made = [exp.alias_(value, f"$value_{i}", quoted=True) for i, (_, value) in enumerate(values)]
    tree.set("expressions", made or [exp.alias_(exp.null(), "$nothing", quoted=True)])
    bound, target = split_target(bind(replace(query, tree=tree), catalog))
    if query.where is not None:
        chosen = predicate_of(query.where, target.fields, table)
        target = target.narrowed(target.columns, (*target.terms, chosen))
    bound.tree.set("expressions", [e for e in bound.tree.expressions if e.alias != "$nothing"])
    fields = tuple(field for field, _ in values)
    return RowQuery(bound, target.view, alias, target, table, fields)


def split_target(bound: BoundQuery) -> tuple[BoundQuery, Relation]:
    """A query without the relation of the table that its statement changes, and that one.

    Raises `UnsupportedError` for columns that the statement would take for its own.
    """
    view = target_of_tree(bound.tree).name
    target = next(relation for relation in bound.relations if relation.view == view)
    others = tuple(relation for relation in bound.relations if relation is not target)
    _refuse_own_names((field.name for field in target.fields), target.name)
    for other in others:
        names = (f.name for f in other.fields) if other.columns is None else other.columns
        _refuse_own_names(names, other.name)
    return replace(bound, relations=others), target


def target_of_tree(tree: exp.Expr) -> exp.Table:
    """The table that a statement changes, in the tree of its query."""
    return next(node for node in tree.find_all(exp.Table) if node.meta.get(TARGET))


_OWN = re.compile(
    r"\$(row|row_id|split|source|case|matches|operation|version|nothing"
    r"|(value|condition|id|kept)(_\d+)+)",
    re.IGNORECASE,
)


def _refuse_own_names(names: Iterable[str], table: str) -> None:
    """Raise `UnsupportedError` for a column that a DELETE, UPDATE or MERGE would take for its own.

    All of these names begin with a dollar, and engines tell no case apart.
    """
    taken = next((name for name in names if _OWN.fullmatch(name)), None)
    if taken is not None:
        raise UnsupportedError(
            f"table {table}: column {taken!r} has a name that DELETE, UPDATE and MERGE use "
            f"themselves, so they cannot be about it; rename the column, or write whole rows"
        )
