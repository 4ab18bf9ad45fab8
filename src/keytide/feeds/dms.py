"""AWS DMS: ``{"data", "metadata"}`` as on Kinesis and Kafka, or flat rows with an ``Op`` column.

A flat row is a line of a JSON file, or of a CSV file converted to JSON, with the column ``Op`` (I,
U, D) in addition to the table's columns. A row without ``Op`` is from a full load, where DMS writes
it only on request: an insert that precedes every change. A truncated or dropped table is rejected,
because the feed does not list the rows.
"""

from __future__ import annotations

from keytide.feeds.feed import Envelope
from keytide.feeds.order import BIGINT, Derived, Ordering, SequenceSource
from keytide.types import STRING, AtomicType

__all__ = ["DMS"]

_TIME = AtomicType("TIMESTAMP_LTZ", precision=6)

_METADATA = {
    # A change that is committed while its table is loaded is applied after the load, but a loaded
    # row has the time when it was loaded.
    "commit.timestamp": Derived(
        """CASE WHEN operation = '"load"' THEN '"1970-01-01T00:00:00Z"' ELSE timestamp END""",
        {"operation": "/metadata/operation", "timestamp": "/metadata/timestamp"},
    ),
    "transaction.id": Derived(
        "coalesce(transaction_id, '0')", {"transaction_id": "/metadata/transaction-id"}
    ),
    "record.id": Derived(
        "coalesce(record_id, '0')", {"record_id": "/metadata/transaction-record-id"}
    ),
    "change_seq": Derived(
        """coalesce(nullif(coalesce(flat_seq, data_seq), '""'), '0')""",
        {"flat_seq": "/AR_H_CHANGE_SEQ", "data_seq": "/data/AR_H_CHANGE_SEQ"},
    ),
}

_ORDERINGS = (
    Ordering(
        ("AR_H_CHANGE_SEQ", "data.AR_H_CHANGE_SEQ"),
        (
            SequenceSource(
                "change_seq", "_change_seq", AtomicType("DECIMAL", precision=38, scale=0)
            ),
        ),
    ),
    Ordering(
        ("metadata.timestamp",),
        (
            SequenceSource("commit.timestamp", "_timestamp", _TIME),
            SequenceSource("transaction.id", "_transaction_id", BIGINT),
            SequenceSource("record.id", "_record_id", BIGINT),
        ),
    ),
)

_FORMER = (
    (
        SequenceSource("metadata.timestamp", "_timestamp", _TIME),
        SequenceSource("metadata.transaction-record-id", "_record_id", BIGINT),
    ),
    (SequenceSource("AR_H_CHANGE_SEQ", "_change_seq", STRING),),
)

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
        WHEN op = '"D"' THEN 'delete'
        WHEN op IS NULL AND data IS NULL AND record IS NULL THEN 'insert' END""",
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
    metadata=_METADATA,
    orderings=_ORDERINGS,
    former=_FORMER,
    origin=("metadata.schema-name", "metadata.table-name"),
    housekeeping=frozenset({"Op"}),
)
