"""Maxwell JSON: ``{"type", "data", "old", "ts", "xid", "xoffset", "commit", "position"}``.

``old`` contains only the columns that an update changed. Bootstrap start and completion records and
DDL records are control messages.
"""

from __future__ import annotations

from keytide.cdc.feed import BIGINT, Envelope, SequenceSource
from keytide.types import STRING

__all__ = ["MAXWELL"]

MAXWELL = Envelope(
    members={
        "type": "/type",
        "data": "/data",
        "old": "/old",
        "commit": "/commit",
        "xoffset": "/xoffset",
        "position": "/position",
    },
    action="""CASE
        WHEN type IN ('"insert"', '"bootstrap-insert"') THEN 'insert'
        WHEN type = '"update"' THEN 'update'
        WHEN type = '"delete"' THEN 'delete'
        WHEN type IN ('"bootstrap-start"', '"bootstrap-complete"', '"heartbeat"')
            OR starts_with(type, '"database-') OR starts_with(type, '"table-') THEN 'control'
        END""",
    problem="""'type: found ' || coalesce(type, 'nothing')
        || ', expected one of "insert", "update", "delete", "bootstrap-insert"'""",
    changes="""[{
        'before': CASE action WHEN 'delete' THEN data WHEN 'update' THEN old END,
        'after': CASE WHEN action <> 'delete' THEN data END}]""",
    metadata={
        # The last row of a transaction has no offset, only the commit flag.
        "xoffset": "CASE WHEN commit = 'true' THEN '9223372036854775807' ELSE xoffset END",
        "binlog.file": """split_part(position, ':', 1) || '"'""",
        "binlog.position": """rtrim(split_part(position, ':', -1), '"')""",
    },
    orderings=(
        (
            # Both ts and xid are set when a statement starts. Only the binlog position follows the
            # order of commits.
            SequenceSource("binlog.file", "_file", STRING),
            SequenceSource("binlog.position", "_position", BIGINT),
            SequenceSource("xoffset", "_xoffset", BIGINT),
        ),
        (
            SequenceSource("ts", "_ts", BIGINT),
            SequenceSource("xid", "_xid", BIGINT),
            SequenceSource("xoffset", "_xoffset", BIGINT),
        ),
    ),
    key_pointer="/primary_key_columns",
)
