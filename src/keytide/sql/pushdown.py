"""Conditions of a query: which of them are pushed down, and which type they must have.

An engine always evaluates its whole WHERE clause, so a pushed condition may keep too many rows but
never too few. A term is pushed if DuckDB, Spark and Keytide agree on it, see
`keytide.predicate.where`. Of an AND, the terms that qualify are pushed. An OR is pushed as a
whole or not at all. Everything else is left to the engine, such as CASTs and functions.

Conditions must be BOOLEAN, whichever engine evaluates them. Engines accept numbers and strings as
conditions, each engine different ones. A date without quotes, which is a number, would then be true
for every row. So a condition is refused if its type is known and is not BOOLEAN. If only the engine
can determine the type, the condition is marked, and the engine enforces BOOLEAN: DuckDB by a macro
that accepts nothing else, and Spark by CASE, which does not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlglot import exp

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.predicate.literals import Literal, between, comparison, equalities, flag
from keytide.predicate.predicate import (
    DEPTH_MAX,
    FLIPPED,
    Comparison,
    IsNull,
    Like,
    Predicate,
    conjunction,
    depth_of,
    disjunction,
    negation,
)
from keytide.predicate.where import agreed_values, agrees_on
from keytide.sql.cursor import Keytide, error_at, typed
from keytide.types import Field

# -- pushdown --------------------------------------------------------------------------------------


def pushed_predicate(term: exp.Expr, fields: Mapping[str, Field]) -> Predicate | None:
    """A predicate that is true for every row for which `term` is true, or None.

    `fields` are the columns of the table by their names in lower case.
    """
    found = _Pusher(fields).implied(term)
    return None if found is None or depth_of(found) > DEPTH_MAX else found


def exact_predicate(term: exp.Expr, fields: Mapping[str, Field]) -> Predicate | None:
    """The predicate that is true for exactly the same rows as `term`, or None."""
    found = _Pusher(fields).same(term)
    return None if found is None or depth_of(found) > DEPTH_MAX else found


def balanced_chains(tree: exp.Expr) -> exp.Expr:
    """The tree with long chains of AND or OR nested as flat as possible, without changing the
    meaning.

    Walking a tree takes time and stack space that depend on its depth.
    """
    for joint in (exp.And, exp.Or):
        for node in [n for n in tree.find_all(joint) if not isinstance(n.parent, joint)]:
            terms = list(node.flatten(unnest=False))
            if len(terms) <= _CHAIN_MAX:
                continue
            while len(terms) > 1:
                pairs = zip(terms[::2], terms[1::2], strict=False)
                odd = terms[len(terms) // 2 * 2 :]
                terms = [*(joint(this=exp.paren(a, copy=False) if isinstance(a, joint) else a,
                                 expression=exp.paren(b, copy=False) if isinstance(b, joint) else b)
                           for a, b in pairs), *odd]  # fmt: skip
            node.replace(terms[0])
    return tree


# Long chains come from generated SQL. Shorter ones cannot overflow the stack.
_CHAIN_MAX = 50


@dataclass(frozen=True)
class _Pusher:
    fields: Mapping[str, Field]

    def implied(self, node: exp.Expr) -> Predicate | None:
        """A predicate that `node` implies."""
        if isinstance(node, exp.Paren):
            return self.implied(node.this)
        if isinstance(node, exp.And):
            return conjunction(p for part in node.flatten() if (p := self.implied(part)))
        if isinstance(node, exp.Or):
            return _any_of([self.implied(part) for part in node.flatten()])
        found = self.same(node)
        if found is not None or not isinstance(node, exp.EQ | exp.In) or node.args.get("negate"):
            return found

        # Equality of a CHAR with a string. An engine that respects trailing blanks keeps fewer
        # rows.
        field = self._field(node.this)
        if field is None or field.type.root != "CHAR":
            return None
        texts = _items(node) if isinstance(node, exp.In) else [node.expression]
        if not texts or not all(isinstance(t, exp.Literal) and t.is_string for t in texts):
            return None
        return equalities(field, [text.this for text in texts])

    def same(self, node: exp.Expr) -> Predicate | None:
        """A predicate with the same meaning as `node`, including NULL results."""
        if isinstance(node, exp.Paren):
            found = self.same(node.this)
        elif isinstance(node, exp.And):
            parts = [self.same(part) for part in node.flatten()]
            found = None if None in parts else conjunction(part for part in parts if part)
        elif isinstance(node, exp.Or):
            found = _any_of([self.same(part) for part in node.flatten()])
        elif isinstance(node, exp.Not):
            inner = self.same(node.this)
            found = inner and negation(inner)
        elif isinstance(node, exp.Column):
            field = self._field(node)
            is_flag = field is not None and field.type.root == "BOOLEAN"
            found = Comparison(field.name, "=", value=True) if field and is_flag else None
        else:
            read = _READERS.get(type(node))
            found = None if read is None else read(self, node)
        return negation(found) if found and node.args.get("negate") else found

    # -- terms -------------------------------------------------------------------------------------

    def _comparison(self, node: exp.Expr) -> Predicate | None:
        left, right, operator = node.this, node.expression, _OPERATORS[type(node)]
        if isinstance(right, exp.Column):
            left, right, operator = right, left, FLIPPED[operator]
        field = self._field(left)
        if field is None or not agrees_on(operator, field):
            return None
        values = agreed_values([_literal(right)], field)
        return None if values is None else comparison(field, operator, *values)

    def _in(self, node: exp.Expr) -> Predicate | None:
        field = self._field(node.this)
        items = _items(node)
        if field is None or not items or not agrees_on("IN", field):
            return None
        values = agreed_values([_literal(item) for item in items], field)
        return None if values is None else equalities(field, values)

    def _between(self, node: exp.Expr) -> Predicate | None:
        field = self._field(node.this)
        if field is None or node.args.get("symmetric") or not agrees_on("BETWEEN", field):
            return None
        ends = [_literal(node.args["low"]), _literal(node.args["high"])]
        values = agreed_values(ends, field)
        return None if values is None else between(field, *values)

    def _is(self, node: exp.Expr) -> Predicate | None:
        field, value = self._field(node.this), node.expression
        if field is None:
            return None
        if isinstance(value, exp.Null):
            return IsNull(field.name)
        if isinstance(value, exp.Boolean) and field.type.root == "BOOLEAN":
            return flag(field, bool(value.this))
        return None

    def _like(self, node: exp.Expr) -> Predicate | None:
        field, pattern = self._field(node.this), node.expression
        if field is None or not agrees_on("LIKE", field):
            return None
        # A backslash is an escape character in Spark but not in DuckDB.
        if not isinstance(pattern, exp.Literal) or not pattern.is_string or "\\" in pattern.this:
            return None
        return Like(field.name, pattern.this)

    def _field(self, node: exp.Expr) -> Field | None:
        # A name with three parts is a field of a ROW, or a column of another table.
        if not isinstance(node, exp.Column) or node.args.get("db"):
            return None
        field = self.fields.get(node.name.lower())
        return field if field is not None and not field.type.is_nested else None


_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_READERS: dict[type[exp.Expr], Callable[[_Pusher, exp.Expr], Predicate | None]] = {
    **dict.fromkeys(_OPERATORS, _Pusher._comparison),
    exp.In: _Pusher._in,
    exp.Between: _Pusher._between,
    exp.Is: _Pusher._is,
    exp.Like: _Pusher._like,
}


def _items(node: exp.Expr) -> list[exp.Expr]:
    """The list of an IN, empty if it is a query or something else."""
    others = [node.args.get(name) for name in ("query", "unnest", "field", "is_global")]
    return [] if any(others) else list(node.expressions)


def _any_of(parts: Sequence[Predicate | None]) -> Predicate | None:
    """A disjunction of the parts, None if any of them is unknown."""
    known = [part for part in parts if part is not None]
    return disjunction(known) if known and len(known) == len(parts) else None


# -- literals --------------------------------------------------------------------------------------


def _literal(node: exp.Expr) -> Literal | None:
    """A literal, or `DATE '...'` and `TIMESTAMP '...'`, or an equivalent CAST."""
    if isinstance(node, exp.Boolean):
        return Literal("BOOLEAN", str(bool(node.this)).upper())
    if isinstance(node, exp.Literal):
        return Literal("TEXT" if node.is_string else "NUMBER", node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return Literal("NUMBER", f"-{node.this.this}")
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        form = None if node.to.expressions else _TYPED_FORMS.get(node.to.this)
        return None if form is None else Literal(form, node.this.this)
    return None


_TYPED_FORMS = {exp.DType.DATE: "DATE", exp.DType.TIMESTAMPNTZ: "TIMESTAMP"}


# -- BOOLEAN conditions ----------------------------------------------------------------------------


CONDITION = "condition"
"""The mark, in the meta of an expression, for a condition of a statement."""

_FUNCTION = "keytide_condition"
DUCKDB_MACRO = f"CREATE MACRO {_FUNCTION}(c BOOLEAN) AS c"
"""The definition of the DuckDB function that marks conditions."""


def marked_conditions(tree: exp.Expr, fields: Mapping[str, Sequence[Field]], text: str) -> exp.Expr:
    """The tree, with conditions marked whose type only the engine can determine.

    `fields` are the columns of the tables by name. Raises `InvalidError`, pointing into `text`, for
    a condition that is known not to be BOOLEAN.
    """
    found = [node for node in _conditions(tree) if not isinstance(node, _BOOLEAN)]
    if not found:
        return tree

    # The types of conditions, by their index, where they can be determined with all their parts.
    for place, node in enumerate(found):
        node.meta[_PLACE] = place
    try:
        known = typed(tree, fields)
    finally:
        for node in found:
            del node.meta[_PLACE]
    types: dict[int, exp.DataType] = {}
    for node in () if known is None else known.walk():
        if _PLACE in node.meta and isinstance(node, _TYPED) and node.type:
            parts = [part for part in node.walk() if isinstance(part, exp.Condition)]
            if all(part.type and not part.is_type(exp.DType.UNKNOWN) for part in parts):
                types[node.meta[_PLACE]] = node.type

    for place, node in enumerate(found):
        if isinstance(node, exp.Null):  # it has no type, which Spark does not accept
            node.replace(exp.cast(node.copy(), exp.DType.BOOLEAN))
            continue
        type_ = types.get(place)
        if type_ is not None and not type_.is_type(exp.DType.BOOLEAN):
            is_date = isinstance(node, exp.Sub) and not node.find(exp.Column)
            way_out = "write a date as DATE '...'" if is_date else "compare it with a value"
            what = f"{type_.sql(dialect=Keytide)}, not BOOLEAN; {way_out}"
            message = f"{_shown(node)} is used as a condition but is {what}"
            raise error_at(text, _start(node), message)
        if type_ is None:
            mark = exp.Anonymous(this=_FUNCTION)
            node.replace(mark)
            mark.set("expressions", [node])
    return tree


def spark_condition(node: exp.Expr) -> exp.Expr:
    """A marked condition in the form in which Spark enforces BOOLEAN. Other nodes are unchanged."""
    if not _is_mark(node):
        return node
    inner: exp.Expr = node.expressions[0].transform(spark_condition)
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    if not isinstance(parent, exp.Connector | exp.Not):
        return inner  # Spark accepts only BOOLEAN there
    return exp.Paren(this=exp.Case().when(inner.copy(), exp.true()).else_(inner.copy()))


def refused_condition(tree: exp.Expr, message: str, text: str) -> InvalidError | None:
    """The error for a marked condition that DuckDB refuses, None for its other errors.

    If there are several conditions, it is unknown which one is meant, so all are named.
    """
    marks = [node.expressions[0] for node in tree.walk() if _is_mark(node)]
    if _FUNCTION not in message or not marks:
        return None
    which = " or ".join(map(_shown, marks))
    return error_at(
        text,
        _start(marks[0]),
        f"{which} is used as a condition but is not BOOLEAN; compare it with a value",
    )


def _is_mark(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == _FUNCTION


_BOOLEAN = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)
"""Expressions that are always BOOLEAN. The operands of some are conditions themselves."""


def _conditions(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions where a condition is required, without surrounding parentheses."""
    for node in tree.walk():
        if isinstance(node, exp.Where | exp.Having | exp.Qualify | exp.Not):
            yield _plain(node.this)
        elif isinstance(node, exp.Connector):
            yield from map(_plain, (node.this, node.expression))
        elif isinstance(node, exp.Join) and node.args.get("on") is not None:
            yield _plain(node.args["on"])
        elif isinstance(node, exp.If) and not (
            isinstance(node.parent, exp.Case) and node.parent.args.get("this") is not None
        ):
            yield _plain(node.this)
        elif node.meta.get(CONDITION):
            yield _plain(node)


def _plain(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


# -- types -----------------------------------------------------------------------------------------

_TYPED = (exp.Column, exp.Literal, exp.Cast, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod,
          exp.DPipe)  # fmt: skip
"""Expressions whose type the parser knows as every engine does. This is not so for functions."""
_PLACE = "condition_place"


def _start(node: exp.Expr) -> int:
    return min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=0)


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Subquery):
        return "the query in parentheses"
    text = node.sql(dialect=Keytide, comments=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


_SHOWN_MAX = 60
