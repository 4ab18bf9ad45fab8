"""Procedures that are generated from verbs of tables, and helpers for other procedures."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeAlias

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.catalogs.catalog import Catalog
from keytide.errors import InvalidError
from keytide.snapshot.pinned import StoredTable
from keytide.sql.names import table_of
from keytide.write.partition_spec import Place, partition_condition

__all__ = ["Procedure", "chosen", "done", "named_by_commas", "places", "procedure", "texts"]

Procedure: TypeAlias = Callable[..., pa.Table]


def done(_: object = None) -> pa.Table:
    """The result of a procedure that returns nothing."""
    return pa.table({"result": [True]})


def texts(column: str) -> Callable[[Iterable[str]], pa.Table]:
    """A result with one string per row."""
    return lambda found: pa.table({column: pa.array(found, pa.string())})


def _rows(result: Any) -> pa.Table:
    rows: pa.Table = done() if result is None else result.to_arrow()
    return rows


def procedure(
    verb: Callable[..., Any], answer: Callable[[Any], pa.Table] = _rows, **named: str
) -> Procedure:
    """The procedure that runs a verb. `answer` converts the verb's result.

    It takes the arguments of the verb, by position or by name. If `named` is given, it takes only
    these arguments, in this order and under these SQL names: `tag="name"`.
    """
    declared = inspect.signature(verb, eval_str=True).parameters
    named = named or {name: name for name in [*declared][1:]}

    @wraps(verb)
    def carry_out(catalog: Catalog, table: str, *arguments: Any, **others: Any) -> pa.Table:
        given = {**dict(zip(named, arguments, strict=False)), **others}
        found = table_of(catalog, table)
        return answer(verb(found, **{named[name]: value for name, value in given.items()}))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter(name, kind, annotation=type_)
           for name, type_ in (("catalog", Catalog), ("table", str))]  # fmt: skip
    taken = [_argument(declared[name], sql_name) for sql_name, name in named.items()]
    setattr(carry_out, "__signature__", inspect.Signature([*own, *taken]))  # noqa: B010  # no member that mypy knows
    return checked(carry_out)


def _argument(parameter: inspect.Parameter, name: str) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameter.replace(name=name, kind=kind, annotation=_of_literals(parameter.annotation))


def _of_literals(annotation: Any) -> Any:
    """The part of a type that can be written as a literal, which excludes durations."""
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation
    return typing.Union[tuple(t for t in typing.get_args(annotation) if t is not timedelta)]  # noqa: UP007  # made of values


def named_by_commas(text: str) -> list[str]:
    """Names separated by commas, without duplicates."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def places(partitions: str | None) -> list[str]:
    """Partitions separated by semicolons: `dt=2026-01-31;dt=2026-02-01`."""
    return [text for text in (partitions or "").split(";") if text.strip()]


def chosen(
    procedure: str, table: StoredTable, partitions: str | None, where: str | None
) -> list[Place]:
    """The partitions that are listed or match a condition. An empty list means all."""
    if where is None:
        return [*places(partitions)]
    if partitions is not None:
        raise InvalidError(
            f"sys.{procedure}: partitions and where cannot be combined; give only one of them"
        )
    return [partition_condition(where, table.schema, table.name)]
