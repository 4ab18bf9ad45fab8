"""Commands derived from table methods: their options are the arguments, with their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args

import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format
from keytide.cli.parameters import FormatOption, TableArgument, Warehouse
from keytide.lake.members import member
from keytide.snapshot.stored import StoredTable

__all__ = ["command"]

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = {
    "dry_run": typer.Option("--dry-run", help="Show what would be deleted, without doing it.")
}
"""The help of a parameter, for any method."""


def command(
    verb: Callable[Concatenate[StoredTable, P], T], **options: Any
) -> Callable[[Callable[[T, Format], None]], Callable[..., None]]:
    """A decorator of a function that shows what a verb gives: makes it the command.

    `options` say of parameters of the verb what people read of them; the docstring of the function
    is the help of the command.
    """
    carry_out: Callable[..., T] = member(verb)
    said = {**_OPTIONS, **options}
    _, *declared = inspect.signature(verb, eval_str=True).parameters.values()
    own = [_parameter("table", TableArgument), _parameter("warehouse", Warehouse, None)]
    own += [_parameter(each.name, Annotated[_typed(each.annotation), said[each.name]], each.default)
            for each in declared]  # fmt: skip
    own += [_parameter("format", FormatOption, Format.TABLE)]
    parameters = sorted(own, key=lambda each: each.default is not each.empty)

    def decorate(show: Callable[[T, Format], None]) -> Callable[..., None]:
        @wraps(verb)
        def run(table: str, warehouse: str | None, format: Format, **given: Any) -> None:
            show(carry_out(open_named_table(table, warehouse), **given), format)

        run.__name__, run.__doc__ = show.__name__, show.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010  # no member that mypy knows
        return run

    return decorate


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _typed(annotation: Any) -> Any:
    """The type of an argument: a string for all types that a string can express, such as a time."""
    choices = get_args(annotation)
    if str not in choices:
        return annotation
    return str | None if type(None) in choices else str
