"""How a scan will be carried out: what is read, what was left out, and by which condition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keytide.base.arguments import checked
from keytide.base.text import counted
from keytide.read.plan import Funnel
from keytide.show.plan import plan_list
from keytide.show.plan_tree import Plan
from keytide.show.svg import notebook

__all__ = ["Explanation"]


@dataclass(frozen=True)
class Explanation:
    """The plan of a scan, made without reading data.

    - `funnel` counts what remained after each pruning step.
    - `files_raw` is the number of files that are read without a merge.
    - `files_merged` is the number of files that are merged by `merge_engine`, in `sections_merged`
      sections of at most `runs_max` overlapping runs. `merge_engine` is None for an append table,
      which never merges.
    - `limit` is the maximum number of rows, None without a limit.
    - `asked_of_files` are the conditions that skip files by their metadata, and `asked_of_rows` are
      the conditions that can only be checked on rows.
    """

    table: str
    snapshot_id: int | None
    merge_engine: str | None
    funnel: Funnel
    files_raw: int
    files_merged: int
    sections_merged: int
    runs_max: int
    limit: int | None = None
    asked_of_files: str | None = None
    asked_of_rows: str | None = None

    def __str__(self) -> str:
        lines = [f"scan of {self.table}, snapshot {self.snapshot_id}"]
        lines.append(
            f"{'after':<12}{'partitions':>11}{'buckets':>9}{'files':>8}{'rows':>13}{'bytes':>15}"
        )
        lines += [
            f"{s.stage:<12}{s.partitions:>11,}{s.buckets:>9,}{s.files:>8,}{s.rows:>13,}"
            f"{s.bytes:>15,}"
            for s in self.funnel.stages
        ]
        return "\n".join([*lines, "; ".join(self._readings()), *self._conditions()])

    def _readings(self) -> Iterator[str]:
        yield f"read without merging: {counted(self.files_raw, 'file')}"
        if self.merge_engine is not None:
            yield (
                f"merged by {self.merge_engine}: {counted(self.files_merged, 'file')} in "
                f"{counted(self.sections_merged, 'section')} of up to "
                f"{counted(self.runs_max, 'overlapping run')}"
            )

        if self.limit is not None:
            yield f"at most {counted(self.limit, 'row')}"

    def _conditions(self) -> Iterator[str]:
        if self.asked_of_files is not None:
            yield f"conditions on files: {self.asked_of_files}"
        if self.asked_of_rows is not None:
            yield f"conditions on rows only: {self.asked_of_rows}"

    @checked
    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        """The explanation as a tree of steps; `notes` are shown below its title."""
        title = f"scan of {self.table}, snapshot {self.snapshot_id}"
        return Plan(title, notes, tuple(self.funnel.stages), tuple(self._steps()))

    def _steps(self) -> Iterator[Plan]:
        if self.files_raw:
            yield Plan(f"read without merging: {counted(self.files_raw, 'file')}")
        if self.files_merged:
            yield Plan(
                f"merged by {self.merge_engine}: {counted(self.files_merged, 'file')}",
                (
                    f"{counted(self.sections_merged, 'section')} of up to "
                    f"{counted(self.runs_max, 'overlapping run')}",
                ),
            )
        if self.limit is not None:
            yield Plan(f"at most {counted(self.limit, 'row')}")
        if self.asked_of_files is not None:
            yield Plan(f"files skipped by: {self.asked_of_files}")
        if self.asked_of_rows is not None:
            yield Plan(f"rows skipped by: {self.asked_of_rows}")

    def _repr_html_(self) -> str:
        return notebook(plan_list(self.plan()))
