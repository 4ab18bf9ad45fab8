"""Option checks that several engines share."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.errors import InvalidError
from keytide.merge.functions.register import registered_functions
from keytide.merge.functions.registry import function_of
from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["check_functions", "conflicting"]


def check_functions(
    columns: Mapping[str, Field], names: Mapping[str, str], options: TableOptions
) -> None:
    """Raise `InvalidError` for a function in `names` that is unknown or does not fit its column."""
    for name, value in options.by_columns(keys.IGNORE_RETRACT).items():
        if value.lower() not in ("true", "false"):
            key = keys.key_of(keys.IGNORE_RETRACT, name)
            raise InvalidError(
                f"option {key!r} has the value {value!r}; expected 'true' or 'false'"
            )
    for name, function in names.items():
        function_of(function, columns[name], options, registered_functions(options))


def conflicting(one: str, other: str) -> InvalidError:
    """The error for two options that exclude each other."""
    return InvalidError(
        f"{one} and {other} conflict: each defines what a delete does. Remove one of them"
    )
