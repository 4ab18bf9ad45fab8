"""The plan of a scan as a tree: what is read, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator

from keytide.pictures.plan_tree import Plan
from keytide.plural import counted
from keytide.table.read.scan import Explanation

__all__ = ["plan_of_scan"]


def plan_of_scan(explained: Explanation, notes: tuple[str, ...] = ()) -> Plan:
    """The tree, with notes from the caller."""
    title = f"scan of {explained.table}, snapshot {explained.snapshot_id}"
    return Plan(title, notes, tuple(explained.funnel.stages), tuple(_readings(explained)))


def _readings(explained: Explanation) -> Iterator[Plan]:
    if explained.files_raw:
        yield Plan(f"read as they are: {counted(explained.files_raw, 'file')}")
    if explained.files_merged:
        yield Plan(
            f"merged by {explained.merge_engine}: {counted(explained.files_merged, 'file')}",
            (
                f"{counted(explained.sections_merged, 'section')} of up to "
                f"{counted(explained.runs_max, 'overlapping run')}",
            ),
        )
    if explained.asked_of_files is not None:
        yield Plan(f"files left out by: {explained.asked_of_files}")
    if explained.asked_of_rows is not None:
        yield Plan(f"rows left out by: {explained.asked_of_rows}")
