"""The registry of merge functions: built-in and user-defined, and the one of each column.

The options of a table determine the function of a column.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass
from keytide.base.process import refuse_forked_child
from keytide.errors import InvalidError
from keytide.merge.functions.collections import (
    Collect,
    HllSketch,
    ListAgg,
    MergeMap,
    MergeMapWithKeyTime,
    NestedPartialUpdate,
    NestedUpdate,
    RoaringBitmap32,
    RoaringBitmap64,
    ThetaSketch,
    Union,
)
from keytide.merge.functions.inputs import AggregatedColumn, AggregateFunction
from keytide.merge.functions.scalars import (
    BoolAnd,
    BoolOr,
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
    Max,
    Min,
    Product,
    Sum,
)
from keytide.merge.functions.user import (
    MergeFunction,
    UnregisteredFunction,
    UserFunction,
    check_laws,
)
from keytide.options import TableOptions, keys, option_of
from keytide.types import (
    LENGTH_MAX,
    ArrayType,
    AtomicType,
    Field,
    MapType,
    RowType,
    parse_sql_type,
)

# -- built-in functions ----------------------------------------------------------------------------


DEFAULT_FUNCTION = "last_non_null_value"
NO_FUNCTIONS: Mapping[str, MergeFunction] = {}
FUNCTION_OPTIONS = (
    keys.AGGREGATE_FUNCTION,
    keys.DEFAULT_AGGREGATE_FUNCTION,
    keys.IGNORE_RETRACT,
    keys.COUNT_VALUES,
    keys.DISTINCT,
    keys.LIST_AGG_DELIMITER,
    keys.NESTED_KEY,
    keys.NESTED_SEQUENCE_FIELD,
    keys.NESTED_KEY_NULL_STRATEGY,
    keys.COUNT_LIMIT,
    keys.MERGE_MAP_TS_FIELD,
    keys.TS_FIELD,
)
"""The options of columns with functions."""


def function_names(
    columns: Iterable[str], options: TableOptions, default: str | None = None
) -> dict[str, str]:
    """The function that the options select for each column: its own, otherwise the table's default.

    Columns without either get `default`, or are omitted if that is None.
    """
    own = options.by_columns(keys.AGGREGATE_FUNCTION)
    default = options.default_aggregate_function or default
    names = {column: own.get(column, default) for column in columns}
    return {column: _stored_name(name) for column, name in names.items() if name is not None}


def with_stored_names(raw: Mapping[str, str]) -> dict[str, str]:
    """The options with the function names that every engine of the format uses."""
    named = dict(raw)
    for key, value in raw.items():
        is_own = keys.columns_in(keys.AGGREGATE_FUNCTION, key) is not None
        if is_own or key == keys.DEFAULT_AGGREGATE_FUNCTION:
            named[key] = _stored_name(value)
    return named


def is_built_in(name: str) -> bool:
    """Whether a name is that of a built-in function, case-insensitively."""
    return name.lower() in {*_FUNCTIONS, *_OTHER_NAMES, *_GONE}


def aggregated_columns(
    fields: Iterable[Field],
    names: Mapping[str, str],
    options: TableOptions,
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> dict[str, AggregatedColumn]:
    """The functions of the columns in `names`, configured by the options.

    `functions` are user-defined. An unknown name gives a function that raises when its column is
    aggregated, so that the other columns can be read.
    """
    ignores = options.by_columns(keys.IGNORE_RETRACT)
    known = {*_FUNCTIONS, *_GONE, *functions}
    return {
        field.name: AggregatedColumn(
            function_of(names[field.name], field, options, functions)
            if names[field.name] in known
            else UnregisteredFunction(field.name, names[field.name]),
            ignore_retract=ignores.get(field.name, "false").lower() == "true",
        )
        for field in fields
        if field.name in names
    }


def function_of(
    name: str,
    field: Field,
    options: TableOptions,
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> AggregateFunction:
    """The function of that name for a column. `functions` are user-defined.

    Raises `InvalidError` for an unknown name, an unsupported column type, and an invalid option.
    """
    make = _FUNCTIONS.get(name)
    if make is not None:
        return make(field, _Options(field.name, options.raw))
    if name in functions:
        function = functions[name]
        if not function.takes(field.type):
            expected = "one of " + ", ".join(type_.sql() for type_ in function.types)
            raise _wrong_type(function.name, field, expected)
        return UserFunction(field.name, function)
    hint = f" ({_GONE[name]})" if name in _GONE else ""
    raise InvalidError(
        f"column {field.name!r} has the unknown aggregate function '{name}'{hint}; expected one "
        f"of {', '.join(sorted({*_FUNCTIONS, *functions}))}. keytide.register_merge_function "
        f"adds your own"
    )


def _stored_name(name: str) -> str:
    # Older documents write 'nested-update' for 'nested_update', and other names likewise.
    plain = name.replace("-", "_")
    return plain if plain in _FUNCTIONS else _OTHER_NAMES.get(plain.lower(), name)


@dataclass(frozen=True)
class _Options:
    """The options `fields.<column>.*` of one column."""

    column: str
    raw: Mapping[str, str]

    def key(self, option: str) -> str:
        return keys.key_of(option, self.column)

    def value(self, option: str) -> Any:
        """The typed value, or the default if the option is not set."""
        row = option_of(option)
        assert row is not None
        key = self.key(option)
        return row.parse(key, self.raw[key]) if key in self.raw else row.default_value

    def members(self, option: str, known: Collection[str]) -> tuple[str, ...]:
        """The fields of a nested ROW that an option names."""
        names: tuple[str, ...] = self.value(option)
        if not set(names) <= set(known):
            raise InvalidError(
                f"option {self.key(option)!r} has the value {self.raw[self.key(option)]!r}; "
                f"expected fields of the nested ROW: {', '.join(known)}"
            )
        return names


_Make = Callable[[Field, _Options], AggregateFunction]


def _simple(make: Callable[[str], AggregateFunction], *roots: str) -> _Make:
    """A function without options, for columns of the given types, or any type if none is given."""

    def function(field: Field, options: _Options) -> AggregateFunction:
        made = make(field.name)
        if roots and field.type.root not in roots:
            raise _wrong_type(made.name, field, f"one of {', '.join(roots)}")
        return made

    return function


def _listagg(field: Field, options: _Options) -> AggregateFunction:
    type_ = field.type
    is_string = (
        isinstance(type_, AtomicType) and type_.root == "VARCHAR" and type_.length == LENGTH_MAX
    )
    if not is_string:
        raise InvalidError(
            f"Data type for list agg column must be STRING, but column {field.name!r} is "
            f"{field.type.sql()}"
        )
    return ListAgg(
        field.name,
        delimiter=options.value(keys.LIST_AGG_DELIMITER),
        distinct=options.value(keys.DISTINCT),
        nullable=field.type.nullable,
    )


def _collect(field: Field, options: _Options) -> AggregateFunction:
    if not isinstance(field.type, ArrayType):
        raise _wrong_type("collect", field, "ARRAY")
    return Collect(field.name, distinct=options.value(keys.DISTINCT))


def _union(field: Field, options: _Options) -> AggregateFunction:
    if not (isinstance(field.type, ArrayType) and field.type.element.root in _COMPARABLE):
        raise _wrong_type("union", field, f"ARRAY of one of {', '.join(_COMPARABLE)}")
    return Union(field.name)


def _merge_map(field: Field, options: _Options) -> AggregateFunction:
    if not isinstance(field.type, MapType):
        raise _wrong_type("merge_map", field, "MAP")
    return MergeMap(field.name)


def _merge_map_with_keytime(field: Field, options: _Options) -> AggregateFunction:
    name = MergeMapWithKeyTime.name
    if not isinstance(field.type, MapType):
        raise InvalidError(
            f"Data type of column {field.name!r} with aggregate function {name!r} must be 'MAP', "
            f"found {field.type.sql()}"
        )
    row = field.type.value
    if not isinstance(row, RowType):
        raise InvalidError(
            f"Value type of MAP column {field.name!r} with aggregate function {name!r} must be "
            f"ROW, found {row.sql()}"
        )
    members = [member.name for member in row.fields]
    if len(members) < 2:
        raise InvalidError(
            f"column {field.name!r}: the ROW of aggregate function {name!r} must have at least 2 "
            f"fields, a value and its time; found {len(members)}"
        )
    time = options.value(keys.TS_FIELD) or options.value(keys.MERGE_MAP_TS_FIELD)
    if time is not None and time not in members:
        raise InvalidError(
            f"Timestamp field '{time}' not found in ROW type of column {field.name!r}; its "
            f"fields are {', '.join(members)}"
        )
    return MergeMapWithKeyTime(field.name, time=time or members[-1])


def _nested_update(field: Field, options: _Options) -> AggregateFunction:
    members = _nested_members("nested_update", field)
    key = options.members(keys.NESTED_KEY, members)
    sequence = options.members(keys.NESTED_SEQUENCE_FIELD, members)
    keyed = [keys.NESTED_SEQUENCE_FIELD] if sequence else []
    if options.key(keys.NESTED_KEY_NULL_STRATEGY) in options.raw:
        keyed.append(keys.NESTED_KEY_NULL_STRATEGY)
    if keyed and not key:
        option, needed = options.key(keyed[0]), options.key(keys.NESTED_KEY)
        raise InvalidError(f"Option '{option}' requires '{needed}' to be configured.")
    return NestedUpdate(
        field.name,
        key=key,
        null_strategy=options.value(keys.NESTED_KEY_NULL_STRATEGY),
        sequence=sequence,
        count_limit=options.value(keys.COUNT_LIMIT),
    )


def _nested_partial_update(field: Field, options: _Options) -> AggregateFunction:
    members = _nested_members("nested_partial_update", field)
    key = options.members(keys.NESTED_KEY, members)
    if not key:
        raise InvalidError(
            f"column {field.name!r}: aggregate function 'nested_partial_update' needs a nested "
            f"key; set {options.key(keys.NESTED_KEY)!r} to fields of the nested ROW"
        )
    null_strategy = options.value(keys.NESTED_KEY_NULL_STRATEGY)
    return NestedPartialUpdate(field.name, key=key, null_strategy=null_strategy)


def _nested_members(name: str, field: Field) -> Collection[str]:
    if not (isinstance(field.type, ArrayType) and isinstance(field.type.element, RowType)):
        raise _wrong_type(name, field, "ARRAY<ROW>")
    return [member.name for member in field.type.element.fields]


def _wrong_type(name: str, field: Field, expected: str) -> InvalidError:
    return InvalidError(
        f"column {field.name!r}: the aggregate function {name!r} does not support the type "
        f"{field.type.sql()}; expected {expected}"
    )


_NUMERIC = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
_COMPARABLE = (
    *_NUMERIC, "BOOLEAN", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DATE", "TIME", "TIMESTAMP",
    "TIMESTAMP_LTZ",
)  # fmt: skip

_FUNCTIONS: Mapping[str, _Make] = {
    "sum": _simple(Sum, *_NUMERIC),
    "product": _simple(Product, *_NUMERIC),
    "max": _simple(Max, *_COMPARABLE),
    "min": _simple(Min, *_COMPARABLE),
    "bool_and": _simple(BoolAnd, "BOOLEAN"),
    "bool_or": _simple(BoolOr, "BOOLEAN"),
    "last_value": _simple(LastValue),
    "last_non_null_value": _simple(LastNonNullValue),
    "first_value": _simple(FirstValue),
    "first_non_null_value": _simple(FirstNonNullValue),
    "first_not_null_value": _simple(FirstNonNullValue),
    "listagg": _listagg,
    "collect": _collect,
    "union": _union,
    "merge_map": _merge_map,
    "merge_map_with_keytime": _merge_map_with_keytime,
    "nested_update": _nested_update,
    "nested_partial_update": _nested_partial_update,
    "rbm32": _simple(RoaringBitmap32, "VARBINARY"),
    "rbm64": _simple(RoaringBitmap64, "VARBINARY"),
    "hll_sketch": _simple(HllSketch, "VARBINARY"),
    "theta_sketch": _simple(ThetaSketch, "VARBINARY"),
}
# Apache Pinot's names of the same functions, case-insensitively.
_OTHER_NAMES = {
    "overwrite": "last_non_null_value",
    "force_overwrite": "last_value",
    "ignore": "first_non_null_value",
    "increment": "sum",
    "append": "collect",
    "union": "union",
    "max": "max",
    "min": "min",
}
# Function names in other documents that are configured differently here.
_GONE = {"count": f"it is chosen column by column: '{keys.AGGREGATE_FUNCTION}' = 'count'"}


# -- user-defined functions ------------------------------------------------------------------------


_registered: dict[str, MergeFunction] = {}
_lock = threading.Lock()


@checked
def register_merge_function(
    name: str,
    function: Callable[[pl.Expr], pl.Expr],
    *,
    types: Sequence[str],
    retract: Callable[[pl.Expr, pl.Expr], pl.Expr] | None = None,
    skip_nulls: bool = True,
    examples: Sequence[Any] = (),
) -> None:
    """Register a merge function, which tables in this process can use to aggregate columns.

    A column uses it through the option `fields.<column>.aggregate-function` = `name`, in an
    `aggregation` table or in a sequence group of a `partial-update` table.

    `function` receives the values of one key as a Polars expression, in merge order (by the
    sequence field, then by arrival). It returns an expression with one value of the column's type.
    The result can have a wider numeric type, but must fit the column. NULLs are removed first, and
    a key that has only NULLs is NULL. With `skip_nulls=False`, the function receives NULLs too.

    The function must follow one law: aggregating partial aggregates gives the same result as
    aggregating all values, however they are grouped. This call tests the law with generated values
    of each of `types` (SQL type names such as 'BIGINT' or 'ARRAY<STRING>'; lengths and precisions
    do not matter) and with `examples`, if given. Passing the test makes the function likely
    correct, but does not prove it.

    `retract` reverses -U and -D rows. It works row by row on two expressions: the aggregate of the
    added values (NULL if there are none) and the aggregate of the retracted values. Retracting all
    at once, in steps, and before or after other adds must give the same result. Without `retract`,
    retractions are refused, or ignored if `fields.<column>.ignore-retract` is set.

    The function is sent to other processes, including Spark executors, where the modules that it
    imports must be installed. Other engines cannot aggregate the column. Registering a name again
    replaces the function for tables that are read or written from then on.

    Raises `InvalidError` for a name that is taken or malformed, for a type that does not parse,
    and, with an example, for a function that violates the law.

    >>> import keytide as kt
    >>> kt.register_merge_function("longest", lambda v: v.sort_by(v.str.len_chars()).last(),
    ...                            types=["STRING"])
    """
    refuse_forked_child()
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or is_built_in(name):
        reason = "is built in" if is_built_in(name) else "is not a name of letters, digits and _"
        raise InvalidError(f"merge function name {name!r} {reason}; choose another one")
    if not types:
        raise InvalidError(
            f"merge function {name!r}: types is {types!r}; list the SQL types of the columns "
            f"that it folds, such as ['BIGINT']"
        )
    made = MergeFunction(
        name=name,
        function=function,
        types=tuple(parse_sql_type(text) for text in types),
        retract=retract,
        skip_nulls=skip_nulls,
    )
    check_laws(made, examples)
    with _lock:
        _registered[name] = made


def registered_functions(options: TableOptions) -> Mapping[str, MergeFunction]:
    """The registered functions that a table's options use."""
    with _lock:
        known = dict(_registered)
    default = options.default_aggregate_function
    names = {*options.by_columns(keys.AGGREGATE_FUNCTION).values(), *([default] if default else ())}
    return {name: known[name] for name in sorted({*map(_stored_name, names)} & known.keys())}
