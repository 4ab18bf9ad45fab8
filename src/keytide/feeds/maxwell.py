"""Maxwell JSON: ``{"type", "data", "old", "ts", "xid", "xoffset", "commit", "position"}``.

``old`` contains only the columns that an update changed. Bootstrap start and completion records and
DDL records are control messages.
"""

from __future__ import annotations

from keytide.feeds.epochs import LOG, NUMBER, POSITION, SERVER, TIME
from keytide.feeds.feed import Envelope
from keytide.feeds.order import BIGINT, EPOCH_SOURCE, Derived, Ordering, SequenceSource
from keytide.types import STRING

__all__ = ["MAXWELL"]

_POSITION = {"position": "/position"}
_FILE = "split_part(position, ':', 1)"

_METADATA = {
    # The last row of a transaction has no offset, only the commit flag.
    "xoffset": Derived(
        "CASE WHEN commit = 'true' THEN '9223372036854775807' ELSE coalesce(xoffset, '-1') END",
        {"commit": "/commit", "xoffset": "/xoffset"},
    ),
    # Bootstrapped rows have no position. They precede the changes of the stream.
    "binlog.file": Derived(
        rf"coalesce(nullif(ltrim(regexp_extract({_FILE}, '\.([0-9]+)$', 1), '0'), ''), '0')",
        _POSITION,
    ),
    "binlog.position": Derived(
        """coalesce(rtrim(split_part(position, ':', -1), '"'), '0')""", _POSITION
    ),
    LOG: Derived(
        rf"""coalesce(nullif(regexp_extract({_FILE}, '^"(.*)\.[0-9]+$', 1), ''),
            ltrim({_FILE}, '"'))""",
        _POSITION,
    ),
    SERVER: Derived("server", {"server": "/server_id"}),
    TIME: Derived("CASE WHEN ts IS NOT NULL THEN ts || '000' END", {"ts": "/ts"}),
    NUMBER: Derived(rf"nullif(regexp_extract({_FILE}, '\.([0-9]+)$', 1), '')", _POSITION),
    POSITION: Derived("""rtrim(split_part(position, ':', -1), '"')""", _POSITION),
}

_XOFFSET = SequenceSource("xoffset", "_xoffset", BIGINT)
_STARTS = (
    SequenceSource("ts", "_ts", BIGINT),
    SequenceSource("xid", "_xid", BIGINT),
    _XOFFSET,
)

# Both ts and xid are set when a statement starts. Only the binlog position follows the order of
# commits.
_ORDERINGS = (
    Ordering(
        ("position",),
        (
            EPOCH_SOURCE,
            SequenceSource("binlog.file", "_file", BIGINT),
            SequenceSource("binlog.position", "_position", BIGINT),
            _XOFFSET,
        ),
    ),
    Ordering(
        ("ts",),
        _STARTS,
        refusal="Maxwell's messages have no binlog position, and 'ts' and 'xid' are those of the "
        "start of a statement, not of its commit. Set output_binlog_position=true in Maxwell, or "
        "give sequence_by ts,xid,xoffset if no statement waits for another one",
    ),
)

_FORMER = (
    (
        SequenceSource("position", "_file", STRING),
        SequenceSource("binlog.position", "_position", BIGINT),
        _XOFFSET,
    ),
    _STARTS,
)

MAXWELL = Envelope(
    members={
        "type": "/type",
        "data": "/data",
        "old": "/old",
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
    metadata=_METADATA,
    orderings=_ORDERINGS,
    former=_FORMER,
    origin=("database", "table"),
    key_pointer="/primary_key_columns",
)
