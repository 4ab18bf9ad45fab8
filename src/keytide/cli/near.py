"""The cache of the command line, for everything that a command opens."""

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
    """Set the cache for the next command."""
    _GIVEN.set({"cache": cache, "cache_bytes": cache_bytes})


def cache_arguments() -> CacheArguments:
    """The cache that the command line sets."""
    return _GIVEN.get({"cache": None, "cache_bytes": None})


def refuse_cache(command: str) -> None:
    """A usage error if a cache is set for a command that does not use one."""
    if any(cache_arguments().values()):
        raise typer.BadParameter(
            f"--cache has no effect on {command}, which reads no table; remove it"
        )
