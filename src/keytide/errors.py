"""Every error Keytide raises, grouped by what the caller can do about it.

::

    KeytideError
    ├── InvalidError        (ValueError)           mend the argument, option, schema or row
    │   └── OverflowingError                   a merge function's result is too large
    ├── NotFoundError       (KeyError)             name something that exists
    ├── AlreadyExistsError  (FileExistsError)      choose another name
    ├── ConflictError       (RuntimeError)         redo the work on the newest snapshot
    ├── DataError           (OSError)              a stored file is missing, torn or unwritable
    ├── UnsupportedError    (NotImplementedError)  the table needs something this release lacks
    ├── ConnectorError      (RuntimeError)         mend the connector: it breaks its contract
    └── SetupError          (RuntimeError)         mend the environment: Java, a missing extra

Each class is also a subclass of the builtin exception that a caller would already catch. Messages
are for people and may change: table, column, option or file, the value found, what was expected,
the way out. Classes are for programs and stay.
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
    """The root of all errors that Keytide raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument; people should read the sentence.
        return str(self.args[0]) if self.args else ""


class InvalidError(KeytideError, ValueError):
    """The input is wrong: an option, a schema, a predicate or rows. Nothing was written."""


class OverflowingError(InvalidError):
    """The result of a merge function does not fit its column: the values were too large."""


class NotFoundError(KeytideError, KeyError):
    """A table, column, snapshot or option of that name does not exist."""


class AlreadyExistsError(KeytideError, FileExistsError):
    """The name is taken."""


class ConflictError(KeytideError, RuntimeError):
    """Another writer changed what this work was based on. Nothing was committed; redo it."""


class DataError(KeytideError, OSError):
    """A stored file is missing, torn, or cannot be written (a full disk, for example)."""


class UnsupportedError(KeytideError, NotImplementedError):
    """The table is sound, but uses a feature or format version that this release lacks."""


class ConnectorError(KeytideError, RuntimeError):
    """A connector of row-level changes broke its contract; `keytide.dml.spi` says what that is."""


class SetupError(KeytideError, RuntimeError):
    """The environment lacks something: a Java runtime, an optional dependency."""


class KeytideWarning(UserWarning):
    """What was done is sound, but may not mean what was meant; the message says why."""
