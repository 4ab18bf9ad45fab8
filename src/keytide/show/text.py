r"""Numbers, times and names in readable form.

>>> size_text(1_234_567)
'1.2 MB'
>>> harmless("a" + chr(0x202E) + "b")
'a\u202eb'
"""

from __future__ import annotations

import re
from datetime import datetime

__all__ = ["ago_text", "harmless", "shortened", "size_text"]

# Control characters, and characters that reverse the text direction, must be visible, so that a
# string cannot look like another name.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def harmless(text: str) -> str:
    """The text with an escape for each character that affects how the rest is displayed."""
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def shortened(text: str, most: int) -> str:
    """The text or, if it has more than `most` characters, its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size_text(size: float) -> str:
    """A size in the largest unit with a value of at least 1, with at most three digits."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < 99.5 else f"{size:.0f} {_UNITS[unit]}"


def ago_text(time: datetime, now: datetime) -> str:
    """The time since a moment, in its largest unit."""
    seconds = int((now - time).total_seconds())
    if seconds < 0:
        return "in the future"
    for span, unit in _SPANS:
        if seconds >= span:
            return f"{seconds // span:,} {unit} ago"
    return f"{seconds} s ago"
