"""The command line with all of its commands, each loaded as if it were called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from keytide.cli.main import app, load_command

__all__ = ["commands", "whole_command_line"]


def whole_command_line() -> Any:
    """The group of all commands."""
    group: Any = get_command(app)
    group.commands = {name: load_command(name) for name in group.commands}
    return group


def commands() -> dict[tuple[str, ...], Any]:
    """The commands, also those of groups, by the words that call them."""
    return dict(_commands_of(whole_command_line()))


def _commands_of(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands_of(command, *before, name)
        else:
            yield (*before, name), command
