"""Plain JSON rows: ``{"id": 1, "name": "a"}`` is the new state of a row.

Key columns can be in the message key, and a message without a value is a delete. The caller that
has the keys adds them, and marks deletes with the field :data:`DELETED`.
"""

from __future__ import annotations

from keytide.base.process import scratch
from keytide.feeds.feed import Envelope
from keytide.feeds.json_sql import literal, pointer

__all__ = ["DELETED", "JSON_ROWS"]

DELETED = scratch("deleted")
"""The field that marks a deleted row: true, or ``"unordered"`` if its place is unknown."""

JSON_ROWS = Envelope(
    members={"row": "$", "deleted": pointer(DELETED)},
    action="""CASE
        WHEN deleted IS NULL THEN 'insert'
        WHEN deleted = 'true' THEN 'delete' END""",
    problem=literal(
        "a message without a value is a delete without a time, but the table has a sequence field"
    ),
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN row END,
        'after': CASE WHEN action <> 'delete' THEN row END}]""",
    housekeeping=frozenset({DELETED}),
    has_keys=True,
)
