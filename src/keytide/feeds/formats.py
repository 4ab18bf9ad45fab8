"""The formats of change feeds by name."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.errors import InvalidError
from keytide.feeds.canal import CANAL
from keytide.feeds.debezium import DEBEZIUM
from keytide.feeds.dms import DMS
from keytide.feeds.feed import Envelope
from keytide.feeds.json_rows import JSON_ROWS
from keytide.feeds.maxwell import MAXWELL

__all__ = ["FORMATS", "envelope_of"]

FORMATS: Mapping[str, Envelope] = {
    "debezium-json": DEBEZIUM,
    "maxwell-json": MAXWELL,
    "canal-json": CANAL,
    "dms-json": DMS,
    "json": JSON_ROWS,
}


def envelope_of(format: str) -> Envelope:
    """The envelope of a format. Raises `InvalidError`, listing the known formats."""
    if format not in FORMATS:
        raise InvalidError(f"format: found {format!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[format]
