"""Names that statements give columns of their own, beside those of the tables they are about."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keytide.errors import UnsupportedError

__all__ = ["refuse_own_names"]

_OWN = re.compile(
    r"\$(row|row_id|split|source|case|matches|operation|version|nothing"
    r"|(value|condition|id|kept)(_\d+)+)",
    re.IGNORECASE,
)


def refuse_own_names(names: Iterable[str], table: str) -> None:
    """Raise `UnsupportedError` for a column that a DELETE, UPDATE or MERGE would take for its own.

    All of these names begin with a dollar, and engines tell no case apart.
    """
    taken = next((name for name in names if _OWN.fullmatch(name)), None)
    if taken is not None:
        raise UnsupportedError(
            f"table {table}: column {taken!r} has a name that DELETE, UPDATE and MERGE use "
            f"themselves, so they cannot be about it; rename the column, or write whole rows"
        )
