"""CALL: procedures of the database `sys`."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pyarrow as pa

from keytide.errors import InvalidError, NotFoundError
from keytide.sql.names import table_of
from keytide.sql.statements import Call
from keytide.table.catalog import Catalog
from keytide.table.scans import why_row

__all__ = ["call"]


def call(catalog: Catalog, statement: Call) -> pa.Table:
    """Run a procedure. Raises `NotFoundError` naming those there are, `InvalidError` for arguments
    that it does not take.
    """
    name = statement.procedure.lower().removeprefix("sys.")
    procedure = _PROCEDURES.get(name)
    if procedure is None:
        known = ", ".join(f"sys.{known}" for known in sorted(_PROCEDURES))
        raise NotFoundError(f"no procedure {statement.procedure!r}; there is {known}")
    try:
        bound = inspect.signature(procedure).bind(catalog, *statement.arguments, **statement.named)
    except TypeError as error:
        parameters = list(inspect.signature(procedure).parameters.values())[1:]
        names = (str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
        raise InvalidError(
            f"the arguments of sys.{name} do not fit, it takes ({', '.join(names)}): {error}"
        ) from None
    return procedure(*bound.args, **bound.kwargs)


def _why(catalog: Catalog, table: object, *key: object) -> pa.Table:
    return why_row(table_of(catalog, str(table)), key).to_arrow()


_PROCEDURES: dict[str, Callable[..., pa.Table]] = {"why": _why}
