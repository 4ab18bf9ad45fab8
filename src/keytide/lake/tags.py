"""The tags of a table, as users hold them."""

from __future__ import annotations

from keytide import html
from keytide.lake.snapshots import shown_time
from keytide.table.history.tags import NamedTag

__all__ = ["Tags"]


class Tags(list[NamedTag]):
    """A list of tags, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "snapshot", "time of the snapshot", "stored versions", "made", "kept for")
        return html.table(head, map(_row, self))


def _row(tag: NamedTag) -> tuple[object, ...]:
    return (
        tag.name,
        tag.snapshot_id,
        shown_time(tag.snapshot),
        f"{tag.snapshot.total_record_count:,}",
        "" if tag.create_time is None else tag.create_time.isoformat(" ", "seconds"),
        "ever" if tag.time_retained is None else tag.time_retained,
    )
