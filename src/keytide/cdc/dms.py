"""AWS DMS: ``{"data", "metadata"}`` as on Kinesis and Kafka, or flat rows with an ``Op`` column.

A flat row is a line of a JSON file, or of a CSV file converted to JSON, with the column ``Op`` (I,
U, D) in addition to the table's columns. A truncated or dropped table is rejected, because the feed
does not list the rows.
"""

from __future__ import annotations

from keytide.cdc.feed import BIGINT, Envelope, SequenceSource
from keytide.types import STRING, AtomicType

__all__ = ["DMS"]

DMS = Envelope(
    members={
        "row": "$",
        "op": "/Op",
        "data": "/data",
        "image": "/before-image",
        "record": "/metadata/record-type",
        "operation": "/metadata/operation",
    },
    action="""CASE
        WHEN record = '"control"'
            AND operation NOT IN ('"truncate-table"', '"drop-table"') THEN 'control'
        WHEN record = '"control"' THEN NULL
        WHEN operation IN ('"load"', '"insert"') THEN 'insert'
        WHEN operation = '"update"' THEN 'update'
        WHEN operation = '"delete"' THEN 'delete'
        WHEN operation IS NOT NULL THEN NULL
        WHEN op = '"I"' THEN 'insert'
        WHEN op = '"U"' THEN 'update'
        WHEN op = '"D"' THEN 'delete' END""",
    problem="""CASE
        WHEN record = '"control"' THEN operation || ' removes rows that the feed does not name'
        WHEN operation IS NOT NULL THEN 'metadata.operation: found ' || operation
            || ', expected one of "load", "insert", "update", "delete"'
        ELSE 'Op: found ' || coalesce(op, 'nothing') || ', expected one of "I", "U", "D"' END""",
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN CASE WHEN operation IS NULL
            THEN row ELSE coalesce(data, image) END ELSE image END,
        'after': CASE WHEN action <> 'delete' THEN CASE WHEN operation IS NULL
            THEN row ELSE data END END}]""",
    orderings=(
        (
            SequenceSource(
                "metadata.timestamp", "_timestamp", AtomicType("TIMESTAMP_LTZ", precision=6)
            ),
            SequenceSource("metadata.transaction-record-id", "_record_id", BIGINT),
        ),
        (SequenceSource("AR_H_CHANGE_SEQ", "_change_seq", STRING),),
    ),
    housekeeping=frozenset({"Op"}),
)
