"""Chooses the write task for a table."""

from __future__ import annotations

from collections.abc import Sequence

from keytide.snapshot.state import TableState, TableView
from keytide.write.partition_spec import PartitionSpec
from keytide.write.side_by_side import joined_upserts
from keytide.write.task import WriteTask, Written
from keytide.write.upsert import UpsertTask

__all__ = ["task_anew", "task_on", "written_by"]


def task_on(state: TableState) -> WriteTask:
    """A task that writes on top of a snapshot. Raises the same errors as `layout_of`."""
    return _class_of(state).on(state)


def task_anew(state: TableState, partition: PartitionSpec | None = None) -> WriteTask:
    """A task whose rows replace others, see `WriteTask.anew`."""
    return _class_of(state).anew(state, partition)


def written_by(view: TableView, parts: Sequence[Written]) -> Written:
    """The combined results of the tasks of a write, in their order."""
    return joined_upserts(view, parts) if view.kind.has_key_index else Written.together(parts)


def _class_of(state: TableState) -> type[WriteTask]:
    return UpsertTask if state.view.kind.has_key_index else WriteTask
