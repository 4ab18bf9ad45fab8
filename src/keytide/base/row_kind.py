"""The kinds of changes to a key: insert, update before, update after, delete."""

from __future__ import annotations

from enum import IntEnum

from keytide.base.arguments import checked
from keytide.errors import InvalidError

ROW_KIND = "_row_kind"
"""The optional column of incoming rows that contains '+I', '-U', '+U' or '-D'."""


class RowKind(IntEnum):
    """The effect of a row on its key. Data files store the values, so they must never change."""

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
        """Whether the kind is an insert or update. The other kinds are retracts."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)

    @classmethod
    @checked
    def parse(cls, text: str) -> RowKind:
        """Parse a kind in upper or lower case. Raises `InvalidError` for any other string."""
        for kind in cls:
            if kind.short == text.upper():
                return kind
        raise InvalidError(
            f"Unsupported short string {text!r} for row kind: write one of '+I', '-U', '+U', '-D'"
        )


RETRACTS = frozenset({RowKind.UPDATE_BEFORE, RowKind.DELETE})
"""The kinds that are retracts."""
