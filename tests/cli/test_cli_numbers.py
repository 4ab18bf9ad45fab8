"""Every number that a command takes, of any size: an answer, or an exit code with a reason."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import keytide as kt
from command_line import commands
from keytide.cli.main import app

NUMBERS = ["-1", "0", "2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 39,
           "nan", "1.5", "True", ""]  # fmt: skip
OTHERS = {"key": "1", "name": "x", "consumer_id": "c", "branch": "b", "source": "nowhere",
          "target": "t", "text": "SELECT 1", "keys": "10", "mode": "full"}  # fmt: skip
SERVES = {"ui"}


COMMANDS = {path: command for path, command in commands().items() if path[-1] not in SERVES}
ASKED = [
    (path, parameter.name)
    for path, command in COMMANDS.items()
    for parameter in command.params
    if parameter.type_descriptor.annotation in (int, float)
]


def test_numbers_of_commands_are_found() -> None:
    assert len(ASKED) > 10


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("path", "name"), ASKED, ids=lambda value: str(value))
def test_any_number_gives_an_answer_or_a_reason(
    orders: kt.Table, path: tuple[str, ...], name: str
) -> None:
    for number in NUMBERS:
        arguments, options = [], []
        for parameter in COMMANDS[path].params:
            value = number if parameter.name == name else OTHERS.get(parameter.name, orders.uri)
            if parameter.param_type_name == "argument":
                arguments.append(value)
            elif parameter.name == name:
                options = [f"{parameter.opts[0]}={value}"]
        done = CliRunner().invoke(app, [*path, *options, "--", *arguments])
        assert done.exit_code in (0, 1, 2), number
        assert "unexpected" not in done.output, (number, done.output)
        assert done.exception is None or isinstance(done.exception, SystemExit)
