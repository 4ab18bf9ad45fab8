"""Imports of optional libraries, with an error that says how to install a missing one.

Any other import of such a library, except for its types, would raise Python's own error for users
who have not installed it.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from keytide.errors import SetupError

__all__ = ["library", "require"]


def library(name: str, extra: str, needed_for: str) -> ModuleType:
    """The module with that full name, from a library in `extra`. Raises `SetupError` without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name, extra, needed_for, str(error)) from error


def require(name: str, extra: str, needed_for: str) -> None:
    """Raise `SetupError` if a library is not installed, without importing it."""
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise _missing(name, extra, needed_for, "it is not installed")


def _missing(name: str, extra: str, needed_for: str, reason: str) -> SetupError:
    package = name.partition(".")[0]
    return SetupError(
        f"{needed_for}: this needs {package}, which cannot be imported ({reason}); install it "
        f"with: pip install 'keytide[{extra}]'"
    )
