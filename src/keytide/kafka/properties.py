"""Properties of Kafka's clients from a file, as Kafka's own commands take them."""

from __future__ import annotations

from pathlib import Path

from keytide.errors import InvalidError, NotFoundError

__all__ = ["read_properties"]


def read_properties(path: str | Path) -> dict[str, str]:
    """Lines of `name=value`; empty ones and those that begin with `#` or `!` say nothing.

    Raises `NotFoundError` where there is no such file, `InvalidError` for another line.
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
            # The line is not shown: it may be half of a password.
            raise InvalidError(f"{path}, line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found
