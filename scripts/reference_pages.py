"""Writes the pages of docs/reference that are generated from the source.

    python scripts/reference_pages.py

Commands are described by their help, procedures and system tables by their signatures and columns,
and errors by their classes. Descriptions that the source lacks are in `reference_words.py`. A name
without a description is an error here.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import pyarrow as pa  # noqa: E402  # after the path is set
from reference_words import (  # noqa: E402  # after the path is set
    CLI_HEAD,
    ERRORS,
    ERRORS_HEAD,
    PROCEDURE_GROUPS,
    PROCEDURES_HEAD,
    SYSTEM_HEAD,
    SYSTEM_TABLE_ROWS,
)

import keytide as kt  # noqa: E402  # after the path is set
from keytide import errors  # noqa: E402  # after the path is set
from keytide.catalogs.system_tables import SYSTEM_TABLES, system_table  # noqa: E402  # after the path is set
from keytide.cli.main import app, load_command  # noqa: E402  # after the path is set
from keytide.sql.procedures import PROCEDURES  # noqa: E402  # after the path is set

__all__ = ["PAGES", "write_pages"]

_NOTE = "<!-- Written by `python scripts/reference_pages.py`; edit the source instead. -->\n"


# -- commands --------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    group.commands = {name: load_command(name) for name in group.commands}
    commands = dict(_commands(group, "keytide"))
    rows = [
        f"| [`{name}`](#{_anchor(name)}) | {_lines(command)[0]} |"
        for name, command in commands.items()
    ]
    parts = [
        CLI_HEAD.replace("{note}", _NOTE).replace("{options}", _options(group)),
        "## Commands\n\n| Command | Description |\n|---|---|\n" + "\n".join(rows),
        *(_command(name, command) for name, command in commands.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _command(name: str, command: Any) -> str:
    arguments = " ".join(
        _shown_argument(each) for each in command.params if each.param_type_name == "argument"
    )
    usage = f"{name} [OPTIONS] {arguments}".rstrip()
    return "\n\n".join(
        [f"## `{name}`", f"```console\n{usage}\n```", _help(command), _options(command)]
    )


def _shown_argument(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    shown += "..." if argument.nargs != 1 else ""
    return shown if argument.required else f"[{shown}]"


def _help(command: Any) -> str:
    """The paragraphs of the help, with examples as code blocks."""
    return "\n\n".join(
        f"```console\n{text.partition(':')[2].strip()}\n```"
        if text.startswith("Example:")
        else _escaped(text)
        for text in _lines(command)
    )


def _lines(command: Any) -> list[str]:
    text = inspect.cleandoc((command.help or "").partition("\f")[0])
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]


def _options(command: Any) -> str:
    types = inspect.signature(command.callback, eval_str=True).parameters
    rows = [
        f"| {_names(each)} | {_value(each, types[each.name].annotation)} | {_cell(each.help)} |"
        for each in command.params
        if each.name not in ("help", "install_completion", "show_completion")
    ]
    return "| Name | Value | Description |\n|---|---|---|\n" + "\n".join(rows) if rows else ""


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    names.sort(key=lambda name: not name.startswith("--"))
    return " ".join(f"`{name}`" for name in names)


def _value(parameter: Any, annotation: Any) -> str:
    types = [*_plain_types(annotation)]
    if bool in types:
        return "flag"
    told = " or ".join(dict.fromkeys(_COMMAND_TYPES.get(each) or _choices(each) for each in types))
    if parameter.multiple or parameter.nargs == -1:
        told += ", can be repeated"
    default = getattr(parameter.default, "value", parameter.default)
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        told += f"; default: `{default}`"
    variable = parameter.envvar
    return f"{told}; or environment variable `{variable}`" if variable else told


_COMMAND_TYPES = {str: "string", int: "integer", float: "number"}


def _choices(type_: Any) -> str:
    if not get_args(type_) and not issubclass(type_, Enum):
        return str(type_.__name__).lower()
    values = get_args(type_) or [each.value for each in type_]
    return ", ".join(f"`{value}`" for value in values)


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The types of the typed values: string for `Annotated[list[str] | None, ...]`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _plain_types(arguments[0])
    elif not arguments or origin is Literal:
        yield annotation
    else:
        for each in arguments:
            if each is not type(None):
                yield from _plain_types(each)


# -- procedures ------------------------------------------------------------------------------------


def procedures_page() -> str:
    """Every procedure with its arguments."""
    told = [name for group in PROCEDURE_GROUPS.values() for name in group]
    _same(told, PROCEDURES, "PROCEDURE_GROUPS")
    groups = [
        f"## {group}\n\n" + "\n\n".join(_procedure(name, text) for name, text in told.items())
        for group, told in PROCEDURE_GROUPS.items()
    ]
    return "\n\n".join([PROCEDURES_HEAD.replace("{note}", _NOTE), *groups]) + "\n"


def _procedure(name: str, meaning: str) -> str:
    parameters = [*inspect.signature(PROCEDURES[name], eval_str=True).parameters.values()][1:]
    rows = [f"| `{each.name}` | {_type(each)} | {_default(each)} |" for each in parameters]
    call = ", ".join(
        f"{each.name}..." if each.kind is each.VAR_POSITIONAL else each.name for each in parameters
    )
    table = "| Argument | Type | Default |\n|---|---|---|\n" + "\n".join(rows)
    return f"### `sys.{name}`\n\n{meaning}\n\n```text\nCALL sys.{name}({call})\n```\n\n{table}"


_TYPES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number",
          "datetime": "time", "date": "time", "Any": "value of the column"}  # fmt: skip


def _type(parameter: inspect.Parameter) -> str:
    told = dict.fromkeys(_type_names(parameter.annotation))
    if "time" in told:  # a string, a date, a timestamp or a number of milliseconds
        return "time"
    return " or ".join(told)


def _type_names(annotation: Any) -> Iterator[str]:
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        yield from (f"`{each}`" for each in arguments)
    elif arguments:
        for each in arguments:
            if each is not type(None):
                yield from _type_names(each)
    else:
        yield _TYPES.get(getattr(annotation, "__name__", str(annotation)), str(annotation))


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "any number of values"
    if parameter.default is parameter.empty:
        return "required"
    shown = parameter.default
    return "" if shown is None else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


# -- system tables ---------------------------------------------------------------------------------


def system_tables_page() -> str:
    """Every system table with its columns."""
    _same(SYSTEM_TABLE_ROWS, SYSTEM_TABLES, "SYSTEM_TABLE_ROWS")
    with tempfile.TemporaryDirectory() as folder:
        table = kt.connect(folder).create_table("t", pa.schema({"id": pa.int64()}), ["id"])
        schemas = {name: system_table(table.stored, name).schema for name in SYSTEM_TABLES}
    parts = [_system_table(name, schemas[name]) for name in SYSTEM_TABLES]
    return "\n\n".join([SYSTEM_HEAD.replace("{note}", _NOTE), *parts]) + "\n"


def _system_table(name: str, schema: pa.Schema) -> str:
    meaning, columns = SYSTEM_TABLE_ROWS[name]
    if name in ("audit_log", "ro"):
        return f"## `{name}`\n\n{meaning}"
    _same(columns, schema.names, f"SYSTEM_TABLE_ROWS[{name!r}]")
    rows = [f"| `{field.name}` | {field.type} | {columns[field.name]} |" for field in schema]
    return (
        f"## `{name}`\n\n{meaning}\n\n| Column | Type | Description |\n|---|---|---|\n"
        + "\n".join(rows)
    )


# -- errors ----------------------------------------------------------------------------------------


def errors_page() -> str:
    """Every class of errors and how to fix them."""
    classes = [getattr(errors, name) for name in errors.__all__]
    _same(ERRORS, errors.__all__, "ERRORS")
    ordered = sorted(classes, key=lambda each: [*ERRORS].index(each.__name__))
    rows = [
        f"| [`{each.__name__}`](#{each.__name__.lower()}) | {_builtin(each)} "
        f"| {ERRORS[each.__name__][0]} |"
        for each in ordered
    ]
    table = "| Class | Also caught as | What to do |\n|---|---|---|\n" + "\n".join(rows)
    parts = [
        f"## `{each.__name__}`\n\n{inspect.getdoc(each)}\n\n{ERRORS[each.__name__][1]}"
        for each in ordered
    ]
    return "\n\n".join([ERRORS_HEAD.replace("{note}", _NOTE), table, *parts]) + "\n"


def _builtin(class_: type) -> str:
    named = [each.__name__ for each in class_.__mro__ if each.__module__ == builtins.__name__]
    return f"`{named[0]}`"


# -- common ----------------------------------------------------------------------------------------


def _same(told: Any, there: Any, name: str) -> None:
    missing, surplus = [*({*there} - {*told})], [*({*told} - {*there})]
    if missing or surplus:
        raise SystemExit(
            f"scripts/reference_words.py, {name}: lacks {missing}, has too many {surplus}"
        )


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")


def _cell(text: str | None) -> str:
    return _escaped(" ".join((text or "").split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/cli.md": cli_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/procedures.md": procedures_page,
    "docs/reference/system-tables.md": system_tables_page,
}


def write_pages() -> None:
    """Write all pages."""
    for path, page in PAGES.items():
        (ROOT / path).write_text(page())


if __name__ == "__main__":
    write_pages()
