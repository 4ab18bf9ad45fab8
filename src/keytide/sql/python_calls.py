"""DELETE, UPDATE and MERGE of an open table, from the arguments of Python calls.

The arguments become the same trees that the grammar creates from SQL, and run in the same way. In
them the table is called `target`, and the rows to merge are called `source`. Each string is parsed
separately, so none of them can end a statement or start another one. They are lines of one SQL
text, and errors point at positions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import Token, TokenType, exp

from keytide.base.dataclass import dataclass, replace
from keytide.catalogs.local_writes import extended_table
from keytide.definition.checks import refuse_same_names
from keytide.definition.schema_evolution import growth
from keytide.dml.assignment import given_values
from keytide.dml.engine import Changed
from keytide.dml.row_statements import CallTarget, Target
from keytide.dml.spi import ConnectorSession, Isolation
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.predicate.condition import Condition
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.scan import EXTERNAL_TABLES, ExternalHandle
from keytide.sources.source_state import PinnedExternal
from keytide.sql.cursor import Cursor, error_at, parse_tree, tokenize
from keytide.sql.dml_grammar import delete_from, merge_into, update_from
from keytide.sql.grammar import options_in_hints
from keytide.sql.query_engine import Engine
from keytide.sql.relation import CallerRelation, ExternalRelation, Relation, StoredRelation
from keytide.sql.row_changes import change_once, merge
from keytide.sql.statements import CALLER_ROWS
from keytide.types import Field, arrow_schema, quoted, type_from_arrow
from keytide.write.input_rows import source_table

# -- arguments as SQL text -------------------------------------------------------------------------


class CallText:
    """The parts of a statement.

    Methods raise `InvalidError` at the position that does not parse.
    """

    def __init__(self) -> None:
        self._text = ""
        self._tokens: list[Token] = []
        self._hints: dict[int, Mapping[str, str]] = {}

    @property
    def text(self) -> str:
        """All parts, each in lines of its own."""
        return self._text

    def cursor(self) -> Cursor:
        """A cursor before all parts, in the form that the grammar needs."""
        return Cursor(self._text, self._tokens, self._hints)

    def condition(self, text: str) -> exp.Expr:
        """A condition, or the expression of a value."""
        start, tokens = self._taken(text)
        tree = parse_tree(self._text, tokens, start, exp.Condition)
        if isinstance(tree, exp.Star):
            raise error_at(self._text, start, "expected an expression, found *")
        return tree

    def query(self, text: str) -> exp.Query:
        """A query."""
        start, tokens = self._taken(text)
        tree = parse_tree(self._text, tokens, start)
        if not isinstance(tree, exp.Query):
            raise error_at(
                self._text, start, "expected a query, such as SELECT * FROM the_table_of_changes"
            )
        return tree

    def values(self, given: Mapping[str, Any], call: str) -> dict[str, exp.Expr]:
        """The values of columns. Raises as `given_values`."""
        return {
            name: self.condition(value if isinstance(value, str) else _value_text(value))
            for name, value in given_values(given, call).items()
        }

    def _taken(self, text: str) -> tuple[int, list[Token]]:
        """The position of a string among the others, and its tokens."""
        start = len(self._text) + 1 if self._text else 0
        self._text = f"{self._text}\n{text}" if self._text else text
        blank = "".join("\n" if c == "\n" else " " for c in self._text[:start])
        tokens = tokenize(blank + text)
        end = next((t for t in tokens if t.token_type == TokenType.SEMICOLON), None)
        if end is not None:
            raise error_at(self._text, int(end.start), "expected one expression; found its end")
        self._tokens += tokens
        self._hints |= options_in_hints(blank + text, tokens)
        return start, tokens


def _value_text(value: pa.Scalar) -> str:
    """A literal as SQL."""
    given, type_ = value.as_py(), value.type
    if pa.types.is_null(type_) or pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return "NULL" if given is None else str(given).upper()
    if pa.types.is_binary(type_):
        return f"X'{given.hex()}'"
    if pa.types.is_decimal(type_):
        return f"CAST('{given:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
    if pa.types.is_floating(type_):
        return f"CAST('{given!r}' AS DOUBLE)"
    if pa.types.is_timestamp(type_):
        word = "TIMESTAMP" if type_.tz is None else "TIMESTAMP_LTZ"
        return f"CAST('{given.isoformat(' ')}' AS {word})"
    return f"CAST('{given.isoformat()}' AS {'DATE' if pa.types.is_date(type_) else 'TIME'})"


# -- DELETE, UPDATE and MERGE ----------------------------------------------------------------------


TARGET, SOURCE = "target", "source"


@dataclass(frozen=True)
class WhenCall:
    """One WHEN clause of a MERGE as given in Python. `values` None means all columns."""

    call: str
    kind: str
    action: str
    values: Mapping[str, Any] | None = None
    condition: str | None = None


def change_where(
    target: Target, engine: Engine, values: Mapping[str, Any] | None, where: Condition | None
) -> Changed:
    """Change columns of the rows that match a condition, as `Table.update` describes.

    Without `values`, delete these rows. A condition object needs no SQL.
    """
    with _depth_errors():
        texts = CallText()
        table = _target(target.name, texts)
        if values is None:
            return change_once(
                target,
                engine,
                delete_from(exp.Delete(this=table, where=_where(texts, where)), texts.cursor()),
            )
        pairs = _assignments(texts.values(values, "Table.update"))
        tree = exp.Update(this=table, expressions=pairs, where=_where(texts, where))
        statement = update_from(tree, texts.cursor())
        if not isinstance(where, str):
            statement = replace(statement, query=replace(statement.query, where=where))
        return change_once(target, engine, statement)


def merge_source(
    table: CallTarget,
    engine: Engine,
    source: str | Relation,
    on: str,
    whens: Sequence[WhenCall],
    isolation: Isolation,
) -> Changed:
    """Merge rows, or the rows of a query, into the table, as `Table.merge` describes."""
    if not whens:
        raise InvalidError(
            f"table {table.name}: a merge without a WHEN clause has no effect; add one, such as "
            "when_matched_update_all()"
        )
    with _depth_errors():
        texts = CallText()
        condition = texts.condition(on)
        branches = exp.Whens(expressions=[_when(texts, when) for when in whens])
        given: dict[str, Relation] = {}
        if isinstance(source, str):
            alias = exp.TableAlias(this=exp.to_identifier(SOURCE))
            using: exp.Expr = exp.Subquery(this=texts.query(source), alias=alias)
        else:
            given[SOURCE] = source
            using = _table(texts, (SOURCE,), SOURCE)
            using.meta[CALLER_ROWS] = SOURCE
        tree = exp.Merge(this=_target(table.name, texts), using=using, on=condition, whens=branches)
        statement = merge_into(tree, texts.cursor())
        pairs = replace(statement.pairs, caller_rows=given)
        return merge(table.catalog, engine, replace(statement, pairs=pairs), isolation)


def add_source_columns(
    table: StoredTable, source: str | Relation, whens: Sequence[WhenCall]
) -> list[WhenCall]:
    """Add the columns of a source to the table, and return the WHEN clauses for that.

    A WHEN clause for all columns then means the columns of the source. Other columns do not change,
    and are NULL in new rows. Raises `InvalidError` if the columns are not known before the merge,
    or no WHEN clause is for all columns, and what `extended_table` raises.
    """
    if isinstance(source, str):
        raise InvalidError(
            f"table {table.name}: merge_schema requires the columns of the source, but the "
            "source is the text of a query; give its rows, such as lake.sql(...).to_arrow()"
        )
    if all(when.values is not None or when.action == "DELETE" for when in whens):
        raise InvalidError(
            f"table {table.name}: merge_schema adds columns for when_matched_update_all and "
            "when_not_matched_insert_all, but neither is used; add one, or remove merge_schema"
        )
    columns = arrow_schema(source.fields)
    extended_table(table.pinned(), partial(growth, columns=columns, table=table.name))
    own = {f.name: f"{SOURCE}.{quoted(f.name)}" for f in source.fields}
    return [
        when if when.values is not None or when.action == "DELETE" else replace(when, values=own)
        for when in whens
    ]


def source_of_rows(
    source: Any,
    table: CallTarget,
    schema_of: Callable[[Any], pa.Schema] | None,
    read: Callable[[Any, TableSchema, str], pa.Table] = source_table,
) -> Relation:
    """The rows to merge into the table.

    `source` is a table, a DataFrame whose columns `schema_of` returns, or what `Table.write`
    accepts. Raises `InvalidError` for anything else, and for columns that SQL does not support or
    cannot distinguish. `read` creates an Arrow table from in-memory rows.
    """
    if isinstance(source, StoredTable):
        return StoredRelation(SOURCE, source)
    if isinstance(source, PinnedExternal):
        handle = ExternalHandle(source)
        return ExternalRelation(SOURCE, EXTERNAL_TABLES, handle, ConnectorSession(), source.name)
    if schema_of is not None:
        schema = schema_of(source)
        _checked_fields(schema, table.name)
        return CallerRelation(SOURCE, source, schema)

    # The rows in types that SQL supports and that hold the same values.
    rows = read(source, table.schema, table.name)
    known = {f.name: f.type.to_arrow() for f in table.schema.fields}
    given = [
        pa.field(f.name, known.get(f.name, pa.string())) if pa.types.is_null(f.type) else f
        for f in rows.schema
    ]
    fields = _checked_fields(pa.schema(given), table.name)
    plain = pa.schema([pa.field(f.name, f.type.to_arrow()) for f in fields])
    try:
        columns = [column.cast(f.type) for column, f in zip(rows.columns, plain, strict=True)]
    except pa.ArrowException as error:
        raise InvalidError(
            f"table {table.name}: the given rows cannot be converted to {plain.to_string()}: "
            f"{error}"
        ) from error
    return CallerRelation(SOURCE, pa.table(columns, schema=plain), plain)


# -- parts -----------------------------------------------------------------------------------------


def _where(texts: CallText, where: Condition | None) -> exp.Where | None:
    """A condition given as a string. A condition object needs no SQL."""
    return exp.Where(this=texts.condition(where)) if isinstance(where, str) else None


def _when(texts: CallText, when: WhenCall) -> exp.When:
    condition = None if when.condition is None else texts.condition(when.condition)
    if when.action == "DELETE":
        then: exp.Expr = exp.Var(this="DELETE")
    elif when.values is None and when.action == "UPDATE":
        then = exp.Update(expressions=[exp.Star()])
    elif when.values is None:
        then = exp.Insert(this=exp.Star())
    else:
        values = texts.values(when.values, when.call)
        if when.action == "UPDATE":
            then = exp.Update(expressions=_assignments(values))
        else:
            names = exp.Tuple(expressions=[exp.column(name, quoted=True) for name in values])
            row = exp.Tuple(expressions=list(values.values()))
            then = exp.Insert(this=names, expression=row)
    return exp.When(
        matched=when.kind == "MATCHED" or None,
        source=when.kind == "NOT MATCHED BY SOURCE" or None,
        condition=condition,
        then=then,
    )


def _assignments(values: Mapping[str, exp.Expr]) -> list[exp.Expr]:
    return [
        exp.EQ(this=exp.column(name, quoted=True), expression=value)
        for name, value in values.items()
    ]


def _target(table: str, texts: CallText) -> exp.Table:
    database, dot, name = table.partition(".")
    return _table(texts, (database, name) if dot else (database,), TARGET)


def _table(texts: CallText, parts: Sequence[str], alias: str) -> exp.Table:
    """A table that does not occur in the text. Errors about it point at the end."""
    names = [exp.to_identifier(part, quoted=True) for part in parts]
    for name in names:
        name.meta.update(start=len(texts.text), end=len(texts.text))
    database = names[0] if len(names) > 1 else None
    return exp.Table(
        this=names[-1], db=database, alias=exp.TableAlias(this=exp.to_identifier(alias))
    )


@contextmanager
def _depth_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise InvalidError(
            "an expression is nested too deeply; change the rows in several steps"
        ) from error


# -- rows ------------------------------------------------------------------------------------------


def _checked_fields(schema: pa.Schema, table: str) -> list[Field]:
    fields: list[Field] = []
    for column in schema:
        try:
            fields.append(Field(-1, column.name, type_from_arrow(column.type)))
        except InvalidError as error:  # noqa: PERF203  # the error has to name the column
            raise InvalidError(
                f"table {table}: column {column.name!r} of the given rows: {error}"
            ) from error
    names = [f.name for f in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidError(f"table {table}: the given rows have two columns named {twice!r}")
    refuse_same_names(fields)
    return fields
