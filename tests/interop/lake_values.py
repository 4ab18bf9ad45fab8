"""Values as JSON can have them, whoever read them: by Spark, or by Arrow."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any


def plain(value: Any) -> Any:
    """A value of numbers, texts, lists and NULL; maps and rows are sorted lists of pairs."""
    if hasattr(value, "asDict"):  # a row of Spark
        return plain(value.asDict())
    if isinstance(value, dict):
        return sorted(([plain(k), plain(v)] for k, v in value.items()), key=repr)
    if isinstance(value, datetime):
        # Spark gives instants without a zone, in that of its session.
        utc = value if value.tzinfo is None else value.astimezone(timezone.utc)
        return utc.replace(tzinfo=None).isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
