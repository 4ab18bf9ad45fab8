"""Every error that Keytide raises, grouped by what the caller can do about it.

::

    KeytideError
    ├── InvalidError        (ValueError)           correct the argument, option, schema or row
    │   └── OverflowingError                   the result of a merge function is too large
    ├── NotFoundError       (KeyError)             name something that exists
    ├── AlreadyExistsError  (FileExistsError)      choose another name
    ├── ConflictError       (RuntimeError)         run the same call again
    ├── DataError           (OSError)              a file is missing, damaged or unwritable
    ├── UnsupportedError    (NotImplementedError)  this release does not support a feature
    ├── ConnectorError      (RuntimeError)         correct the connector
    └── SetupError          (RuntimeError)         install Java or a missing extra

Each class is also a subclass of a builtin exception that a caller would expect. Messages name the
table, column, option or file, the value found, what was expected and how to fix it. They are for
people and can change; the classes are for programs and do not change.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "ConnectorError",
    "DataError",
    "InvalidError",
    "KeytideError",
    "KeytideWarning",
    "NotFoundError",
    "OverflowingError",
    "SetupError",
    "UnsupportedError",
]


class KeytideError(Exception):
    """The base class of all errors that Keytide raises."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument; people should read the sentence.
        return str(self.args[0]) if self.args else ""


class InvalidError(KeytideError, ValueError):
    """The input is invalid: an option, a schema, a condition or a row. Nothing was written."""


class OverflowingError(InvalidError):
    """The result of a merge function does not fit its column because the values are too large."""


class NotFoundError(KeytideError, KeyError):
    """A table, column, snapshot or option with this name does not exist."""


class AlreadyExistsError(KeytideError, FileExistsError):
    """The name already exists."""


class ConflictError(KeytideError, RuntimeError):
    """Another writer changed data that this operation depends on. Nothing was committed."""


class DataError(KeytideError, OSError):
    """A stored file is missing or damaged, or cannot be written, for example on a full disk."""


class UnsupportedError(KeytideError, NotImplementedError):
    """The table is valid, but needs a feature or format version that this release lacks."""


class ConnectorError(KeytideError, RuntimeError):
    """A connector for row-level changes violates its contract, which `keytide.dml.spi` defines."""


class SetupError(KeytideError, RuntimeError):
    """The environment lacks something, such as a Java runtime or an optional dependency."""


class KeytideWarning(UserWarning):
    """The operation succeeded, but may not do what you intended; the message says why."""
