"""The queries of DELETE, UPDATE and MERGE: the affected rows, how they match, and their new values.

The query of a MERGE joins source and target and evaluates the WHEN clauses. It has a row for each
pair of rows to which a WHEN clause applies. It returns the number of the first such clause, the new
values of every clause (NULL unless it applies), and the position of the target row. It also passes
through the fields of the row id and the columns that an UPDATE does not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from sqlglot import exp

from keytide.base.dataclass import dataclass, replace
from keytide.base.text import counted
from keytide.dml.assignment import stored_values
from keytide.dml.attachments import AttachedCatalog
from keytide.dml.engine import SinkPages
from keytide.dml.spi import ColumnHandle, RowChanges
from keytide.errors import InvalidError, UnsupportedError
from keytide.predicate.condition import predicate_of
from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import column_of
from keytide.sql.cursor import Keytide, tokenize
from keytide.sql.definition_grammar import literal_rows
from keytide.sql.dml_grammar import TARGET
from keytide.sql.merged_rows import CASE, ROW, Branch, MergedRows, PassThrough, value_name
from keytide.sql.pushdown import CONDITION, exact_predicate
from keytide.sql.relation import Relation
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.statements import Merge, Query, When
from keytide.types import Field

# -- DELETE and UPDATE -----------------------------------------------------------------------------


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
        return len(parts) == len(terms) and all(exact_predicate(p, fields) in terms for p in parts)

    @property
    def constants(self) -> pa.Table | None:
        """The new values as one row, None unless all of them are plain literals."""
        values = [value.unalias() for value in self.bound.tree.expressions]
        unsigned = (value.this if isinstance(value, exp.Neg) else value for value in values)
        if not all(isinstance(v, exp.Literal | exp.Boolean | exp.Null) for v in unsigned):
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
def engine_errors(bound: BoundQuery, *errors: type[Exception]) -> Iterator[None]:
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


# -- the match of a MERGE --------------------------------------------------------------------------


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


def match_of(
    join: exp.Join, target: str, fields: Sequence[Field], relations: Sequence[Relation]
) -> Match:
    """What is known about a join of a target, given by its alias, with a source."""
    source, condition = join.this, join.args["on"].unnest()
    relation = next((r for r in relations if r.view == source.name), None)
    terms = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]

    # Pairs of equal target and source columns whose types have only one representation.
    by_name = {field.name.lower(): field for field in fields}
    pairs: list[tuple[Field, str]] = []
    for term in terms:
        plain = term.unnest()
        columns = (plain.this, plain.expression) if isinstance(plain, exp.EQ) else ()
        by_side = {c.table.lower(): c.name for c in columns if isinstance(c, exp.Column)}
        field = by_name.get(by_side.get(target.lower(), "").lower())
        other = by_side.get(source.alias_or_name.lower())
        if field is not None and other is not None and has_one_spelling(field.type):
            pairs.append((field, other))

    if isinstance(source, exp.Subquery | exp.Values):
        return Match({field.name: other for field, other in pairs})
    if not isinstance(source, exp.Table) or relation is None or source.args.get("sample"):
        return Match({})
    others = {field.name.lower(): field for field in relation.fields}
    found = {}
    for field, name in pairs:
        other_field = others.get(name.lower())
        if other_field is None or not has_one_spelling(other_field.type):
            continue
        if (field.type.root == "VARCHAR") == (other_field.type.root == "VARCHAR"):
            found[field.name] = other_field.name
    return Match(found, len(found) == len(terms), relation.view)


# -- MERGE -----------------------------------------------------------------------------------------


_SOURCE = "$source"


@dataclass(frozen=True)
class MergeQuery:
    """A MERGE over views. `view` is the target's, `bound.relations` are the other tables'."""

    bound: BoundQuery
    view: str
    alias: str
    target: Relation
    made: MergedRows
    match: Match
    is_plain: bool = False
    """Whether all engines give the same result: keys match by equality, columns are copied."""

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The WHEN clauses in order."""
        return self.made.branches

    @property
    def matched_by(self) -> tuple[str, ...]:
        """The columns whose equality is the only condition, so no INSERT adds a duplicate."""
        columns = self.match.columns
        inserts = [branch for branch in self.branches if branch.action == "INSERT"]
        is_told = self.match.is_all and all(columns.keys() <= i.matched for i in inserts)
        return tuple(columns) if is_told else ()

    @property
    def needs_matched_only(self) -> bool:
        """Whether target rows without a match do not change."""
        return all(branch.kind != "NOT MATCHED BY SOURCE" for branch in self.branches)

    def with_source(self, view: str) -> tuple[BoundQuery, MergeQuery]:
        """The query for the source, and this query with a table instead of the source."""
        tree = self.bound.tree.copy()
        join = tree.args["joins"][0]
        source = join.this
        made = replace(self.bound, tree=exp.select("*").from_(source.copy()))
        alias = exp.TableAlias(this=source.args["alias"].this.copy())
        join.set("this", exp.Table(this=exp.to_identifier(view, quoted=True), alias=alias))
        bound, match = replace(self.bound, tree=tree), replace(self.match, view=view)
        return made, replace(self, bound=bound, match=match)

    def unchanged_columns(self, columns: Sequence[ColumnHandle]) -> tuple[ColumnHandle, ...]:
        """The target columns that some UPDATE does not change."""
        updates = [branch.names for branch in self.branches if branch.action == "UPDATE"]
        return tuple(c for c in columns if any(c.name not in names for names in updates))

    def changes(self, key: Collection[str]) -> RowChanges:
        """The changes that the WHEN clauses can make. Key columns count only if they can change."""
        actions = {branch.action for branch in self.branches}
        updated = {
            number: branch.updated(key)
            for number, branch in enumerate(self.branches)
            if branch.action == "UPDATE"
        }
        return RowChanges("DELETE" in actions, "INSERT" in actions, updated)

    def pass_through(self, pages: SinkPages) -> PassThrough:
        """The target columns that the engine passes through."""
        return PassThrough(pages.row_id.type, self.unchanged_columns(pages.columns))

    def text_for(
        self, dialect: str, passed: PassThrough, *rewrites: Callable[[exp.Expr], exp.Expr]
    ) -> str:
        """The text of the query for an engine. See `BoundQuery.text_for`."""
        chosen = [e.copy() for e in self.bound.tree.expressions]
        for name in (ROW, *passed.names):
            column = exp.column(name, table=self.alias, quoted=True)
            chosen.append(exp.alias_(column, name, quoted=True))
        inner = self.bound.tree.copy()
        inner.set("expressions", chosen)
        has_case = exp.Not(this=exp.Is(this=exp.column(CASE, quoted=True), expression=exp.null()))
        merged = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier("merged")))
        outer = exp.select("*").from_(merged).where(has_case)
        return replace(self.bound, tree=outer).text_for(dialect, *rewrites)


# -- the query of a statement ----------------------------------------------------------------------


def merge_query(
    statement: Merge,
    catalog: AttachedCatalog,
    table: str,
    fields: Sequence[Field],
    starred: Collection[str],
) -> MergeQuery:
    """The query of a MERGE into a table with these columns. Raises as `bind` does.

    `starred` names the columns that SET * and INSERT * mean.
    """
    all_given = [field for field in fields if field.name in starred]
    tree = statement.pairs.tree.copy()
    node = target_of_tree(tree)
    alias = node.alias_or_name
    source = tree.args["joins"][0].this
    if isinstance(source, exp.Subquery) and not source.alias:
        source.set("alias", exp.TableAlias(this=exp.to_identifier("source")))
    given = [
        _values(when, source.alias_or_name, table, all_given if when.values is None else fields)
        for when in statement.whens
    ]
    chosen: list[exp.Expr] = []
    for i, when in enumerate(statement.whens):
        if when.condition is not None:
            condition = exp.paren(when.condition)
            condition.meta[CONDITION] = True
            chosen.append(exp.alias_(condition, f"$condition_{i}", quoted=True))
    chosen += [
        exp.alias_(value.copy(), value_name(i, j), quoted=True)
        for i, values in enumerate(given)
        for j, (_, value) in enumerate(values)
    ]
    tree.set("expressions", chosen or [exp.alias_(exp.null(), "$nothing", quoted=True)])
    bound, target = split_target(bind(replace(statement.pairs, tree=tree), catalog))
    _refuse_short_source(statement, bound, table, all_given)
    match = match_of(bound.tree.args["joins"][0], alias, fields, bound.relations)
    branches = tuple(
        _branch(when, values, match, source.alias_or_name)
        for when, values in zip(statement.whens, given, strict=True)
    )
    matched = next((each for each in bound.relations if each.view == match.view), None)
    sides = {alias: target, source.alias_or_name: matched}
    is_plain = match.is_all and _moves_columns_only(statement.whens, given, sides)
    _choose_branch(bound.tree, alias, branches)
    made = MergedRows(table, branches)
    return MergeQuery(bound, target.view, alias, target, made, match, is_plain)


def _moves_columns_only(
    whens: Sequence[When],
    given: Sequence[Sequence[tuple[Field, exp.Expr]]],
    sides: Mapping[str, Relation | None],
) -> bool:
    """Whether no WHEN has a condition, and all values are columns that no engine changes."""
    roots = {
        (side.lower(), field.name.lower()): field.type.root
        for side, relation in sides.items()
        if relation is not None
        for field in relation.fields
    }
    values = [value for pairs in given for _, value in pairs]
    return all(when.condition is None for when in whens) and all(
        isinstance(value, exp.Column)
        and roots.get((value.table.lower(), value.name.lower())) in _UNCHANGED
        for value in values
    )


_UNCHANGED = frozenset(
    {"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "VARCHAR", "DATE"}
)


def _refuse_short_source(
    statement: Merge, bound: BoundQuery, table: str, fields: Sequence[Field]
) -> None:
    """Refuse SET * and INSERT * from a source table that lacks some of the columns."""
    view = bound.tree.args["joins"][0].this.name
    source = next((relation for relation in bound.relations if relation.view == view), None)
    if source is None or all(w.values is not None or w.action == "DELETE" for w in statement.whens):
        return
    names = [field.name for field in source.fields]
    known = {name.lower() for name in names}
    missing = next((field.name for field in fields if field.name.lower() not in known), None)
    if missing is not None:
        raise InvalidError(
            f"table {table}: SET * and INSERT * require all of its columns in the source, which "
            f"has no {missing!r}, only {', '.join(map(repr, names)) or 'no columns'}; list the "
            "columns to set"
        )


def _branch(
    when: When, values: Sequence[tuple[Field, exp.Expr]], match: Match, source: str
) -> Branch:
    """The clause with the columns it sets. `source` is the alias of the other table."""
    matched = frozenset(  # the columns whose values are those that they are matched by
        field.name
        for field, value in values
        if match.view is not None
        and isinstance(value, exp.Column)
        and value.table.lower() == source.lower()
        and match.columns.get(field.name, "").lower() == value.name.lower()
    )
    return Branch(when.kind, when.action, tuple(field for field, _ in values), matched)


def _values(
    when: When, source: str, table: str, fields: Sequence[Field]
) -> list[tuple[Field, exp.Expr]]:
    """The columns that a WHEN clause sets, in the table's order, with their values."""
    if when.action == "DELETE":
        return []
    if when.values is None:
        return [(f, exp.column(f.name, table=source, quoted=True)) for f in fields]
    if when.columns_are_given:
        by_name = {column_of(n, [f.name for f in fields], table): v for n, v in when.values.items()}
    elif len(when.values) != len(fields):
        raise InvalidError(
            f"table {table}: INSERT gives {counted(len(when.values), 'value')}, but the table "
            f"has {len(fields)} columns: {', '.join(f.name for f in fields)}"
        )
    else:
        by_name = dict(zip((f.name for f in fields), when.values.values(), strict=True))
    return [(f, by_name[f.name]) for f in fields if f.name in by_name]


def _choose_branch(tree: exp.Expr, alias: str, branches: Sequence[Branch]) -> None:
    """Add the number of the WHEN that applies to a bound join. Only its values are computed."""
    given: dict[str, exp.Expr] = {}
    for value in tree.expressions:
        inside = value.copy() if isinstance(value, exp.Subquery) else value.this
        if isinstance(value, exp.Subquery):
            inside.set("alias", None)
        given[value.alias] = inside
    source = None
    if any(branch.kind == "NOT MATCHED BY SOURCE" for branch in branches):
        # A column of the source that is set for every row.
        join = tree.args["joins"][0]
        source = str(join.this.alias_or_name)
        mark = exp.alias_(exp.true(), _SOURCE, quoted=True)
        join.set("this", exp.select("*", mark).from_(join.this.copy()).subquery(source))
    case = exp.Case()
    for number, branch in enumerate(branches):
        parts = [_applies(branch.kind, alias, source)]
        if f"$condition_{number}" in given:
            parts.append(exp.paren(given[f"$condition_{number}"].copy()))
        case = case.when(exp.and_(*parts), exp.Literal.number(number))
    chosen: list[exp.Expr] = [exp.alias_(case, CASE, quoted=True)]
    for number, branch in enumerate(branches):
        for place in range(len(branch.fields)):
            name = value_name(number, place)
            # Refer to the value by name, so that a random value is drawn once. Engines do not allow
            # this next to a subquery.
            has_query = given[name].find(exp.Query) or case.find(exp.Query)
            chooses = case.copy() if has_query else exp.column(CASE, quoted=True)
            test = exp.EQ(this=chooses, expression=exp.Literal.number(number))
            only = exp.Case().when(test, given[name].copy())
            chosen.append(exp.alias_(only, name, quoted=True))
    tree.set("expressions", chosen)


def _applies(kind: str, alias: str, source: str | None) -> exp.Expr:
    target = exp.column(ROW, table=alias, quoted=True)
    if kind == "NOT MATCHED":
        return exp.Is(this=target, expression=exp.null())
    if kind == "NOT MATCHED BY SOURCE":
        return exp.Is(this=exp.column(_SOURCE, table=source, quoted=True), expression=exp.null())
    present = [target]
    if source is not None:
        present.append(exp.column(_SOURCE, table=source, quoted=True))
    return exp.and_(*(exp.Not(this=exp.Is(this=c, expression=exp.null())) for c in present))
