"""What a table needs after a commit.

The commit is made by then, so nothing that goes wrong here makes the call fail: it is a warning,
and a later one tries again.
"""

from __future__ import annotations

import itertools
import sys
import traceback
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

    The warning is about the line that called Keytide.
    """
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"table {table.name}: {done}, and {what} failed, which a later write or {instead} "
            f"makes up for: {error}",
            KeytideWarning,
            stacklevel=_frames_of_ours() + 1,
        )


def _frames_of_ours() -> int:
    """How many frames there are, from the caller's on, to the one that called Keytide."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    names = (str(frame.f_globals.get("__name__")) for frame in frames)
    return sum(1 for _ in itertools.takewhile(_is_ours, names))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("keytide", "contextlib")
