"""The list of a table's snapshots."""

from __future__ import annotations

from keytide.base import html
from keytide.base.text import moment_text
from keytide.format.snapshot import Snapshot

__all__ = ["Snapshots"]


class Snapshots(list[Snapshot]):
    """A list of snapshots, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("id", "time", "kind", "added versions", "stored versions", "user", "identifier")
        return html.table(head, map(_row, self))


def _row(snapshot: Snapshot) -> tuple[object, ...]:
    return (
        snapshot.id,
        moment_text(snapshot.time_millis),
        snapshot.commit_kind.value,
        f"{snapshot.delta_record_count:,}",
        f"{snapshot.total_record_count:,}",
        snapshot.commit_user,
        snapshot.commit_identifier,
    )
