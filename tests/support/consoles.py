"""Commands as the documents show them in a console, run in this process.

`keytide` is run. What would install something, begin a build or reach another machine is checked
as far as this project decides it: the extras of a package, the targets of the Makefile, scripts
and the variables of object stores.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import tomllib
from obstore.exceptions import GenericError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store
from packaging.requirements import Requirement
from typer.testing import CliRunner

from keytide.cli.main import app

__all__ = ["commands", "run_console"]

ROOT = Path(__file__).parents[2]
_INTERRUPTED = 130
_IS_VARIABLE = re.compile(r"[A-Z_]+=").match
_STORES: dict[str, Any] = {"AWS": S3Store, "GOOGLE": GCSStore, "AZURE": AzureStore}


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a console: of those behind `$ `, if there are such."""
    lines = text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(line, comments=True)
        while words:
            at = words.index("&&") if "&&" in words else len(words)
            yield words[:at]
            words = words[at + 1 :]


def run_console(text: str, where: str) -> list[str]:
    """Run the commands of a console one after the other; gives the lines that they print."""
    printed: list[str] = []
    for words in commands(text):
        environment = [*takewhile(_IS_VARIABLE, words)]
        match words[len(environment) :]:
            case ["keytide", *arguments]:
                printed += _keytide(arguments, environment, where)
            case ["pip", "install", package]:
                _check_package(package, where)
            case ["make", target, *_]:
                assert f"\n{target}: " in (ROOT / "Makefile").read_text(), f"{where}: make {target}"
            case ["python", script, *_] if script.endswith(".py"):
                assert (ROOT / script).exists(), f"{where}: {script}"
            case ["export", *variables]:
                _check_variables(variables, where)
            case ["python", "-m", "venv", _] | [".", _]:
                pass
            case _:
                raise AssertionError(f"{where}: nothing here runs {words}")
    return printed


def _keytide(arguments: list[str], environment: list[str], where: str) -> list[str]:
    """Run it; one that goes on until Ctrl-C may be interrupted by the test."""
    given = dict(variable.split("=", 1) for variable in environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KEYTIDE_WAREHOUSE", raising=False)
        done = CliRunner().invoke(app, arguments, env=given)
    assert done.exit_code in (0, _INTERRUPTED), f"{where}: {arguments}\n{done.output}"
    return done.stdout.splitlines()


def _check_package(package: str, where: str) -> None:
    if package == ".":
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = Requirement(package)
    assert asked.name == project["name"], f"{where}: {package}"
    assert asked.extras <= {*project["optional-dependencies"]}, f"{where}: {package}"


def _check_variables(variables: list[str], where: str) -> None:
    """A store's client refuses names that it does not know, before it looks at their values."""
    for variable in variables:
        name, _, value = variable.partition("=")
        assert value, f"{where}: {name}"
        try:
            _STORES[name.partition("_")[0]]("bucket", config={name.lower(): value})
        except UnknownConfigurationKeyError as error:
            raise AssertionError(f"{where}: {name}") from error
        except GenericError:
            continue
