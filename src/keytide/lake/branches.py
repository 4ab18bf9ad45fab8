"""The branches of a table, as users hold them."""

from __future__ import annotations

from keytide import html
from keytide.format.snapshot import Snapshot
from keytide.table.history.branches import BranchInfo

__all__ = ["Branches"]


class Branches(list[BranchInfo]):
    """A list of branches, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "made", "first snapshot", "newest snapshot", "stored versions")
        return html.table(head, map(_row, self))


def _row(branch: BranchInfo) -> tuple[object, ...]:
    time = branch.create_time.replace(tzinfo=None)
    rows = 0 if branch.newest is None else branch.newest.total_record_count
    return (
        branch.name,
        f"{time.isoformat(' ', 'seconds')}Z",
        _id(branch.first),
        _id(branch.newest),
        f"{rows:,}",
    )


def _id(snapshot: Snapshot | None) -> object:
    return "" if snapshot is None else snapshot.id
