"""The work of a write as its table asks for it."""

from __future__ import annotations

from keytide.table.state.state import TableState
from keytide.table.write.partition_spec import PartitionSpec
from keytide.table.write.task import WriteTask
from keytide.table.write.upsert import UpsertTask

__all__ = ["task_anew", "task_on"]


def task_on(state: TableState) -> WriteTask:
    """A task that writes on top of a snapshot. Raises what `layout_of` raises."""
    return _class_of(state).on(state)


def task_anew(state: TableState, partition: PartitionSpec | None = None) -> WriteTask:
    """A task whose rows replace others; see `WriteTask.anew`."""
    return _class_of(state).anew(state, partition)


def _class_of(state: TableState) -> type[WriteTask]:
    return UpsertTask if state.view.kind.has_key_index else WriteTask
