"""The vocabulary of changes: what a row does to its key."""

from __future__ import annotations

from enum import IntEnum

from keytide.arguments import checked
from keytide.errors import InvalidError

__all__ = ["RETRACTS", "ROW_KIND", "RowKind"]

ROW_KIND = "_row_kind"
"""The optional column of incoming rows that holds '+I', '-U', '+U' or '-D'."""


class RowKind(IntEnum):
    """What a row does to its key. The values are stored in data files: do not change them."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+I", "-U", "+U", "-D")[self]

    @property
    def is_add(self) -> bool:
        """Whether a row of the kind inserts or updates; the other kinds retract."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)

    @classmethod
    @checked
    def parse(cls, text: str) -> RowKind:
        """The kind of a short string in either case. Raises `InvalidError` for anything else."""
        for kind in cls:
            if kind.short == text.upper():
                return kind
        raise InvalidError(
            f"Unsupported short string {text!r} for row kind: write one of '+I', '-U', '+U', '-D'"
        )


RETRACTS = frozenset({RowKind.UPDATE_BEFORE, RowKind.DELETE})
"""The kinds that retract."""
