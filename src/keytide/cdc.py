"""Decoding of change feeds to typed rows: Debezium, Maxwell, Canal and AWS DMS, as JSON.

:func:`decode` takes a batch of messages and a :class:`FeedSpec`, and returns rows, rejected
messages and counts. It accesses no store and no table, so the same call runs in a Spark executor
and in a script::

    sample = pa.array(lines[:1000])
    sequence = default_sequence(sample, "debezium-json")
    columns = infer_columns(sample, "debezium-json")
    spec = FeedSpec(
        "debezium-json",
        columns=(*columns, *(source.to_field() for source in sequence)),
        primary_key=("order_id",),
        sequence=sequence,
    )
    rows, rejected, tombstones, control = decode(pa.array(lines), spec)
"""

from keytide.base.row_kind import ROW_KIND as ROW_KIND_COLUMN
from keytide.feeds.conversion import Encoding
from keytide.feeds.debezium import debezium_encoding
from keytide.feeds.decode import decode
from keytide.feeds.epochs import SequenceSource
from keytide.feeds.feed import (
    ORDINAL_COLUMN,
    UNAVAILABLE_COLUMN,
    UNAVAILABLE_VALUE,
    Decoded,
    FeedSpec,
)
from keytide.feeds.formats import FORMATS
from keytide.feeds.inference import default_sequence, infer_columns, infer_primary_key

__all__ = [
    "FORMATS",
    "ORDINAL_COLUMN",
    "ROW_KIND_COLUMN",
    "UNAVAILABLE_COLUMN",
    "UNAVAILABLE_VALUE",
    "Decoded",
    "Encoding",
    "FeedSpec",
    "SequenceSource",
    "debezium_encoding",
    "decode",
    "default_sequence",
    "infer_columns",
    "infer_primary_key",
]
