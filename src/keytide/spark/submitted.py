"""Settings that a user gave to Spark itself: with spark-submit, in its files, and in variables.

Spark applies them when it starts. They are needed before that, so that defaults do not replace
them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from keytide.errors import SetupError
from keytide.spark.internals import settings_of_gateway, spark_home

__all__ = ["submitted"]

_SETTINGS_OF_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--executor-memory": "spark.executor.memory",
}
# Earlier ones count first. Spark itself knows the last two.
_SETTINGS_OF_VARIABLES = {
    "SPARK_MASTER": "spark.master",
    "MASTER": "spark.master",
    "SPARK_REMOTE": "spark.remote",
}
_SETTING = re.compile(r"\s*(spark\.[^\s=:]+)\s*[=:\s]\s*(.*?)\s*")


def submitted(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of Spark that are known before a session exists. Starts nothing.

    Raises `SetupError` if `PYSPARK_SUBMIT_ARGS` has a quote that is not closed.
    """
    if "PYSPARK_GATEWAY_PORT" in environment:  # spark-submit has started this process
        return settings_of_gateway()
    options = dict(_options(_arguments(environment.get("PYSPARK_SUBMIT_ARGS", ""))))
    file = options.pop("--properties-file", None)
    found: dict[str, str] = {}
    for variable, setting in _SETTINGS_OF_VARIABLES.items():
        if environment.get(variable):
            found.setdefault(setting, environment[variable])
    stored = _stored(_default_file(environment) if file is None else Path(file))
    return {**found, **stored, **options}


def _arguments(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SetupError(
            f"the variable PYSPARK_SUBMIT_ARGS is {text!r}, which cannot be divided into arguments "
            f"({error}); close its quotes, or unset it"
        ) from error


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The settings in arguments of spark-submit, and its file of settings."""
    for argument, following in pairwise((*arguments, "")):
        name, has_value, value = argument.partition("=")
        given = value if has_value else following
        if name in ("--conf", "-c"):
            setting, _, text = given.partition("=")
            yield setting, text
        elif name == "--properties-file":
            yield name, given
        elif name in _SETTINGS_OF_OPTIONS:
            yield _SETTINGS_OF_OPTIONS[name], given


def _default_file(environment: Mapping[str, str]) -> Path:
    home = environment.get("SPARK_HOME") or spark_home()
    folder = environment.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    return Path(folder) / "spark-defaults.conf"


def _stored(file: Path) -> dict[str, str]:
    """The settings in a file. Spark itself reports a file that cannot be read."""
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        lines = file.read_text("utf-8").splitlines()
    found = map(_SETTING.fullmatch, lines)
    return {each[1]: each[2] for each in found if each is not None}
