"""Registering merge functions."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from keytide.arguments import checked
from keytide.errors import InvalidError
from keytide.merge.functions.registry import function_names_in, is_built_in
from keytide.merge.functions.user import MergeFunction
from keytide.merge.functions.user_laws import check_laws
from keytide.options import TableOptions
from keytide.process import refuse_forked_child
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
    """Let tables of this process merge columns by the given function.

    A column uses it by the option `fields.<column>.aggregate-function` = name, in an
    `aggregation` table or in a sequence group of a `partial-update` table.

    `function` is given the values of one key as an expression, in merge order (the sequence
    field's, then that of arrival), and returns an expression with one value of the column's
    type. Numbers may come out wider than the column and must fit it. NULLs are left out, and a
    key with nothing else is NULL; with `skip_nulls=False` the function sees them.

    It must keep one law: a fold of folds is the fold of all values, whatever the groups. The law
    is tried out here on made-up values of each of `types` (SQL texts such as 'BIGINT' or
    'ARRAY<STRING>'; lengths and digits do not matter) and on `examples`, if given. What passes
    is likely sound, not proven.

    `retract` takes -U and -D rows back. It works row by row on two expressions: what the adds
    folded to (NULL without any) and what the retracted values folded to. Taking back at once, in
    steps, before or after other adds must be the same. Without it, retracts are refused, or
    skipped where `fields.<column>.ignore-retract` says so.

    The function travels with the work to other processes, Spark's executors among them; modules
    that it imports must be there. Other engines cannot fold the column. Registering a name again
    replaces the function for tables that are read or written from then on.

    Raises `InvalidError` for a name that is taken or malformed, for a type that does not parse,
    and with an example for a function that breaks the law.

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
    """The registered functions that a table's options name."""
    with _lock:
        known = dict(_registered)
    return {name: known[name] for name in sorted(function_names_in(options) & known.keys())}
