"""The one place that loads modules on demand.

Optional extras are among them (`keytide.spark` needs pyspark), and what takes long to load and is
seldom used. For the layers such a load is an import like any other: the module has to stand below
its caller.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["load"]


def load(module: str) -> ModuleType:
    """The module of that full name. Raises `SetupError` where an extra is missing."""
    return importlib.import_module(module)
