"""The one door for modules that are loaded when they are needed, and not before.

Optional extras are among them (`keytide.spark` needs pyspark), and what takes long to load and is
seldom used. A module behind the door is imported all the same: it stands below whoever opens it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["load"]


def load(module: str) -> ModuleType:
    """The module of that full name. Raises `SetupError` where an extra is missing."""
    return importlib.import_module(module)
