"""Reads Kafka client properties from a file, in the format of Kafka's own commands."""

from __future__ import annotations

from pathlib import Path

from keytide.errors import InvalidError, NotFoundError

__all__ = ["read_properties"]


def read_properties(path: str | Path) -> dict[str, str]:
    """Lines of `name=value`. Empty lines and lines that begin with `#` or `!` are ignored.

    Raises `NotFoundError` if there is no such file, and `InvalidError` for an invalid line.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"consumer properties cannot be read from {path}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The line is not shown, because it can be part of a password.
            raise InvalidError(f"{path}, line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found
