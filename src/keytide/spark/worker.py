"""The Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["settle"]


@cache
def settle() -> None:
    """Spare this process the walk through everything imported, once and for all.

    Runs on executors. Spark keeps its Python workers and collects garbage after each task; with
    Arrow, Polars and Spark imported that takes 40 ms a time and finds nothing.
    """
    gc.collect()
    gc.freeze()
