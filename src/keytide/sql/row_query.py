"""The query of a DELETE or an UPDATE: the affected rows and their new values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from keytide.dml.attach import AttachedCatalog
from keytide.errors import UnsupportedError
from keytide.predicate.condition import predicate_of
from keytide.sql.assign import stored_values
from keytide.sql.cursor import Keytide, tokenize
from keytide.sql.definition_grammar import literal_rows
from keytide.sql.dml_grammar import TARGET
from keytide.sql.pushdown import pushed_exactly
from keytide.sql.relation import Relation
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.statements import Query
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
    """The positions of the affected rows, and their new values, as a query over views.

    `view` is the target's, and `bound.relations` are those of the other tables. `updated` lists the
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
        """Whether the target's pushed terms alone determine the affected rows."""
        where = self.bound.tree.args.get("where")
        if where is None:
            return True
        condition, terms = where.this, self.target.terms
        parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
        fields = {field.name.lower(): field for field in self.target.fields}
        # Otherwise a term may only be implied by a part of the condition.
        return len(parts) == len(terms) and all(pushed_exactly(p, fields) in terms for p in parts)

    @property
    def constants(self) -> pa.Table | None:
        """The new values as one row, None unless all of them are plain literals."""
        values = [value.unalias() for value in self.bound.tree.expressions]
        if not all(map(_is_literal, values)):
            return None
        texts = (value.sql(dialect=Keytide) for value in values)
        return literal_rows(tokenize(f"({', '.join(texts)})")) if values else pa.table({})

    def text_for(
        self, dialect: str, passed: Sequence[str], *rewrites: Callable[[exp.Expr], exp.Expr]
    ) -> str:
        """The text of the query for an engine. Some target columns follow the new values.

        Raises as `BoundQuery.text_for`.
        """
        tree = self.bound.tree.copy()
        columns = [exp.column(name, table=self.alias, quoted=True) for name in passed]
        named = [exp.alias_(c, n, quoted=True) for c, n in zip(columns, passed, strict=True)]
        tree.set("expressions", [*tree.expressions, *named])
        return replace(self.bound, tree=tree).text_for(dialect, *rewrites)

    def stored(self, found: pa.Table) -> list[pa.Array]:
        """The new values in the types of the columns.

        Raises `InvalidError` for values that do not fit.
        """
        columns = found.columns[: len(self.fields)]
        return stored_values(columns, self.fields, self.table)

    @contextmanager
    def refusing(self, *errors: type[Exception]) -> Iterator[None]:
        """A context that converts errors of an engine to errors of the statement."""
        with refused_errors(self.bound, *errors):
            yield


def _is_literal(value: exp.Expr) -> bool:
    if isinstance(value, exp.Neg):
        value = value.this
    return isinstance(value, exp.Literal | exp.Boolean | exp.Null)


@contextmanager
def refused_errors(bound: BoundQuery, *errors: type[Exception]) -> Iterator[None]:
    """A context that converts errors of an engine to `InvalidError`s of a query."""
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
    """Separate the relation of the table that a statement changes from the others.

    Raises `UnsupportedError` for columns with names that the statement uses internally.
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
    """Raise `UnsupportedError` for a column name that a DELETE, UPDATE or MERGE uses internally.

    All these names begin with a dollar sign, and engines compare names case-insensitively.
    """
    taken = next((name for name in names if _OWN.fullmatch(name)), None)
    if taken is not None:
        raise UnsupportedError(
            f"table {table}: column {taken!r} has a name that DELETE, UPDATE and MERGE use "
            "internally, so they cannot change this table; rename the column, or write whole rows"
        )
