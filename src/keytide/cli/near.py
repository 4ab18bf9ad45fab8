"""The cache that the command line was given, for whatever a command opens."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TypedDict

import typer

__all__ = ["CacheArguments", "cache_arguments", "give_cache", "refuse_cache"]


class CacheArguments(TypedDict):
    """Arguments of `connect` and `open_table`."""

    cache: str | None
    cache_bytes: str | None


_GIVEN: ContextVar[CacheArguments] = ContextVar("cache")


def give_cache(cache: str | None, cache_bytes: str | None) -> None:
    """Have the command that runs next use a cache."""
    _GIVEN.set({"cache": cache, "cache_bytes": cache_bytes})


def cache_arguments() -> CacheArguments:
    """What the command line says of a cache."""
    return _GIVEN.get({"cache": None, "cache_bytes": None})


def refuse_cache(command: str) -> None:
    """A usage error where a cache was given to a command that has no use for one."""
    if any(cache_arguments().values()):
        raise typer.BadParameter(
            f"--cache has no effect on {command}, which reads no table; remove it"
        )
