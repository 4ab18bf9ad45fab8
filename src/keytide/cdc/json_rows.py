"""Rows as they are: ``{"id": 1, "name": "a"}`` is what becomes of a row, whatever it was before.

What a message is about may stand in its key, and one without a value deletes; that is for who has
keys to tell, by a row with the member :data:`DELETED`.
"""

from __future__ import annotations

from keytide.cdc.feed import Envelope
from keytide.cdc.json_sql import literal, pointer
from keytide.scratch import scratch

__all__ = ["DELETED", "JSON_ROWS"]

DELETED = scratch("deleted")
"""The member of a row that is deleted: true, or ``"unordered"`` where nobody knows when."""

JSON_ROWS = Envelope(
    members={"row": "$", "deleted": pointer(DELETED)},
    action="""CASE
        WHEN deleted IS NULL THEN 'insert'
        WHEN deleted = 'true' THEN 'delete' END""",
    problem=literal(
        "a message without a value deletes, and does not say when: the table has a sequence field"
    ),
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN row END,
        'after': CASE WHEN action <> 'delete' THEN row END}]""",
    housekeeping=frozenset({DELETED}),
    has_keys=True,
)
