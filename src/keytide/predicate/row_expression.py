"""Row expressions: SQL over the columns of one row, computed by DuckDB for many rows at once.

An expression must give the same value for the same row, whenever and wherever it is computed. What
depends on other rows, the clock or the session is refused by name. DuckDB is loaded only if a table
has such an expression.

Among them are the columns that mark rows as deletes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from keytide.base.dataclass import dataclass
from keytide.base.row_engine import row_engine
from keytide.base.row_kind import RowKind
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.predicate.value_columns import stored_column
from keytide.types import AtomicType, Field, arrow_schema

# -- SQL expressions -------------------------------------------------------------------------------


if TYPE_CHECKING:
    import duckdb


Flags = npt.NDArray[np.bool_]

_NODES = frozenset(
    ("BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
     "OPERATOR", "TYPE")
)  # fmt: skip
# DuckDB considers these constant, but they depend on the day, its release or an algorithm.
_CHANGING = frozenset(("age", "hash", "version"))

# DuckDB expands it to others and does not say what it depends on: only its arguments.
_MACROS = frozenset(("nullif",))


@dataclass(frozen=True)
class RowExpression:
    """An expression with the columns that it reads, as it spells their names."""

    text: str
    columns: tuple[str, ...]

    def read_of(self, fields: Mapping[str, Field]) -> tuple[Field, ...]:
        """The columns that it reads, in a table with these columns.

        Raises `InvalidError` for names that are not columns: words such as CURRENT_DATE depend on
        the clock or the session.
        """
        for name in self.columns:
            if name not in fields:
                raise InvalidError(
                    f"it reads {name!r}, which is not a column and can change between rows, "
                    "times and sessions: remove it"
                )
        return tuple(fields[name] for name in self.columns)

    def check(self, target: Field, fields: tuple[Field, ...]) -> None:
        """Raise `InvalidError` if a column cannot store the values of the expression.

        `fields` are the columns that it reads. Integers fit any numeric type, decimals fit those
        with the same number of digits after the point, floating-point numbers fit floating-point
        types, and everything else fits only its own type. Other types need a CAST.
        """
        found = self._computed(arrow_schema(fields).empty_table(), "*").schema.field(0).type
        if not _fits(found, target.type.to_arrow()):
            raise InvalidError(
                f"it is {found}, but column {target.name!r} is {target.type.sql()}: CAST it to "
                "this type, or change the type of the column"
            )

    def values(self, rows: pa.Table, target: Field, table: str) -> pa.ChunkedArray:
        """The value of each row as the column stores it.

        `rows` has the columns that are read, in the table's types. Raises `InvalidError` if a value
        cannot be computed or does not fit the column.
        """
        taken = _cast("COLUMNS(*)", target)
        try:
            made = self._computed(rows, taken if taken != "COLUMNS(*)" else "*").column(0)
        except InvalidError as error:
            raise InvalidError(
                f"table {table}: column {target.name!r}: {error}. Nothing was written; correct "
                "the input values"
            ) from error
        return stored_column(made, target, table)

    def check_condition(self, fields: tuple[Field, ...]) -> None:
        """Raise `InvalidError` if it is not BOOLEAN. `fields` are the columns that it reads."""
        found = self._computed(arrow_schema(fields).empty_table(), "*").schema.field(0).type
        if not types.is_boolean(found):
            raise InvalidError(
                f"it is {found}, but a condition must be BOOLEAN; compare it with a value"
            )

    def tried(self, rows: pa.Table, target: Field) -> tuple[pa.ChunkedArray, Flags]:
        """The value of each row as the column accepts it, and for which rows there is no value.

        `rows` has the columns that are read, in the table's types. If there is no value, for
        example for a string that is not a date, it is NULL.
        """
        tried = f"TRY({{'value': {_cast(f'({_NEWLINE}{self.text}{_NEWLINE})', target)}}})"
        query = f"SELECT tried.value, tried IS NULL FROM (SELECT {tried} AS tried FROM given)"
        made = self._queried(rows, query)
        return made.column(0), np.asarray(made.column(1))

    def _computed(self, rows: pa.Table, taken: str) -> pa.Table:
        return self._queried(rows, f"SELECT {taken} FROM (SELECT (\n{self.text}\n) FROM given)")

    def _queried(self, rows: pa.Table, query: str) -> pa.Table:
        import duckdb

        if not self.columns:  # an Arrow table without columns has no rows
            rows = pa.table({"": pa.nulls(rows.num_rows, pa.int8())})
        with row_engine().cursor() as connection:
            connection.register("given", rows)
            try:
                return connection.sql(query).to_arrow_table()
            except (duckdb.Error, pa.ArrowException) as error:
                raise InvalidError(f"{self.text!r} cannot be computed: {error}") from error


_NEWLINE = "\n"  # ends a comment at the end of the expression


def _cast(value: str, target: Field) -> str:
    """A value cast to the type of a numeric column. Unchanged for other columns."""
    if isinstance(target.type, AtomicType) and target.type.root in _NUMBERS:
        return f"CAST({value} AS {target.type.with_nullable(True).sql()})"
    return value


_NUMBERS = frozenset(
    ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
)  # fmt: skip


@lru_cache(maxsize=256)
def row_expression(text: str) -> RowExpression:
    """The expression for a string.

    Raises `InvalidError` if it does not parse, or if it depends on more than one row. The error
    names the part.
    """
    with row_engine().cursor() as connection:
        parsed, plain = (
            json.loads(connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])
            for query in (f"SELECT (\n{text}\n)", "SELECT 1")
        )
        if parsed["error"]:
            raise InvalidError(f"{text!r} is not a valid SQL expression: {parsed['error_message']}")

        # The expression of a statement that only selects one expression.
        selected = [
            each for statement in parsed["statements"] for each in statement["node"]["select_list"]
        ]
        if len(selected) != 1 or _emptied(parsed) != _emptied(plain):
            raise InvalidError(f"{text!r} is more than one SQL expression")
        (expression,) = selected
        nodes = list(_nodes(expression))
        for node in nodes:
            _refuse(connection, node, text)
    # Names after a column are members of its value.
    names = dict.fromkeys(n["column_names"][0] for n in nodes if n["class"] == "COLUMN_REF")
    return RowExpression(text, tuple(names))


def _emptied(parsed: Any) -> Any:
    """A statement without the expressions that it selects."""
    return [
        {**statement, "node": {**_placeless(statement["node"]), "select_list": []}}
        for statement in parsed["statements"]
    ]


def _placeless(node: Any) -> Any:
    """A part of a statement without its positions in the string."""
    if isinstance(node, dict):
        return {k: _placeless(v) for k, v in node.items() if k != "query_location"}
    return [_placeless(each) for each in node] if isinstance(node, list) else node


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "class" in part:
            yield part
        for each in part.values():
            yield from _nodes(each)
    elif isinstance(part, list):
        for each in part:
            yield from _nodes(each)


_CONSTANT = ({"CONSISTENT"}, {"CONSISTENT", "CONSISTENT_WITHIN_QUERY"})


def _refuse(connection: duckdb.DuckDBPyConnection, node: dict[str, Any], text: str) -> None:
    """Raise `InvalidError` for a part that depends on more than the columns of one row."""
    kind = node["class"]
    if kind not in _NODES:
        raise InvalidError(
            f"{text!r} has a {kind.lower()}; only columns, constants, operators, CASE, CAST and "
            "scalar functions are supported"
        )
    if kind != "FUNCTION":
        return
    name = node["function_name"]
    query = "SELECT DISTINCT function_type, stability FROM duckdb_functions() WHERE function_name=?"
    known = connection.execute(query, [name.lower()]).fetchall()
    if not known:
        raise InvalidError(f"{text!r} calls {name!r}, which DuckDB does not know")
    # Some functions of instants are consistent only within a query, because they depend on the
    # session's time zone, which is UTC here.
    stabilities = {stability for _, stability in known}
    is_scalar = all(made == "scalar" for made, _ in known)
    is_constant = is_scalar and stabilities in _CONSTANT and name.lower() not in _CHANGING
    if not is_constant and name.lower() not in _MACROS:
        raise InvalidError(
            f"{text!r} calls {name!r}, whose result can change between rows, times and sessions: "
            "remove it"
        )


def _fits(found: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type fit a column of another, if they are not too large for it."""
    if found.equals(target) or types.is_null(found):
        return True
    if types.is_integer(found):
        return _is_number(target)
    if types.is_decimal(found):
        behind = target.scale if types.is_decimal(target) else 0
        return _is_number(target) and (types.is_floating(target) or found.scale <= behind)
    if types.is_timestamp(found) and types.is_timestamp(target):
        return (found.tz is None) == (target.tz is None)
    texts = (types.is_string, types.is_floating, types.is_date, types.is_time)
    bytes_ = _is_binary(found) and _is_binary(target)
    return bytes_ or any(is_one(found) and is_one(target) for is_one in texts)


def _is_number(type_: pa.DataType) -> bool:
    return bool(types.is_integer(type_) or types.is_decimal(type_) or types.is_floating(type_))


def _is_binary(type_: pa.DataType) -> bool:
    return bool(types.is_binary(type_) or types.is_fixed_size_binary(type_))


# -- rows marked as deletes ------------------------------------------------------------------------


def with_tombstones(
    kinds: pa.ChunkedArray,
    columns: Mapping[str, pa.ChunkedArray],
    schema: TableSchema,
    options: TableOptions,
) -> pa.ChunkedArray:
    """The kinds of rows (`RowKind` as int8), with -D for each row that matches the tombstone
    condition.

    The given kind of these rows is ignored (rules R6 to R8 of docs/semantics.md). REQUIRES: the
    tombstone column is among `columns`, in the type of the schema.
    """
    if options.tombstone_key:
        (name,) = options.tombstone_key

        column = columns[name]
        field = schema.field(name)
        marker = options.tombstone_string_key_value
        assert isinstance(field.type, AtomicType)
        if field.type.root == "BOOLEAN":
            dead = pc.fill_null(column, False)
        elif marker is None:
            dead = pc.is_valid(column)
        else:
            if field.type.root == "CHAR":
                column, marker = pc.utf8_rtrim(column, " "), marker.rstrip(" ")
            dead = pc.fill_null(pc.equal(column, pa.scalar(marker, column.type)), False)
    elif options.delete_record_column is not None:
        column = columns[options.delete_record_column]
        if pa.types.is_string(column.type):
            text = pc.ascii_lower(pc.utf8_rtrim(column, " "))  # CHAR is padded
            dead = pc.or_(pc.equal(text, "true"), pc.equal(text, "1"))
        elif pa.types.is_boolean(column.type):
            dead = column
        else:
            dead = pc.and_(pc.greater_equal(column, 1), pc.less(column, 2))
        dead = pc.fill_null(dead, False)
    else:
        return kinds
    return pc.if_else(dead, pa.scalar(int(RowKind.DELETE), pa.int8()), kinds)
