"""What a table needs after a commit.

The commit is made by then, so nothing that goes wrong here makes the call fail: it is a warning,
and a later one tries again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from keytide.errors import KeytideWarning
from keytide.table.state.stored import StoredTable

__all__ = ["MAKE_TAGS", "as_warning"]

MAKE_TAGS = "CALL sys.trigger_tag_automatic_creation"
"""What makes the tags that are due, when it is asked to."""


@contextmanager
def as_warning(table: StoredTable, done: str, what: str, instead: str) -> Iterator[None]:
    """A block after something that is `done`: where `what` fails there, `instead` makes up for it.

    The warning is about the line that calls `Table.write`.
    """
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"table {table.name}: {done}, and {what} failed, which a later write or {instead} "
            f"makes up for: {error}",
            KeytideWarning,
            stacklevel=8,
        )
