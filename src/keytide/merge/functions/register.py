"""Registration of user-defined merge functions."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from keytide.base.arguments import checked
from keytide.base.process import refuse_forked_child
from keytide.errors import InvalidError
from keytide.merge.functions.registry import function_names_in, is_built_in
from keytide.merge.functions.user import MergeFunction, check_laws
from keytide.options import TableOptions
from keytide.types import parse_sql_type

__all__ = ["register_merge_function", "registered_functions"]

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
    return {name: known[name] for name in sorted(function_names_in(options) & known.keys())}
