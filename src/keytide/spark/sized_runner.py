"""Runs a table's tasks in threads of the driver if they read little, otherwise on executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from pyspark.sql import SparkSession

from keytide.compaction.compact import local_runner
from keytide.snapshot.state import TableView
from keytide.spark.place import Place, place_of
from keytide.spark.runner import Cluster

__all__ = ["SizedRunner"]

T = TypeVar("T")


@runtime_checkable
class _SizedTask(Protocol):
    """A task that knows what it reads."""

    @property
    def view(self) -> TableView:
        """The table whose files the task reads."""
        ...

    @property
    def stored_bytes(self) -> int:
        """The total size of those files."""
        ...


@dataclass(frozen=True)
class SizedRunner:
    """Runs self-contained tasks where `Place` decides. See `TaskRunner`."""

    spark: SparkSession

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `TaskRunner.each`."""
        runner = local_runner() if self._place(tasks).is_driver else Cluster(self.spark)
        runner.each(tasks, take)

    def _place(self, tasks: Sequence[Callable[[], T]]) -> Place:
        given: Sequence[object] = tasks
        sized = [task for task in given if isinstance(task, _SizedTask)]
        if not sized or len(sized) < len(tasks):
            return Place(None, 0)
        bytes_max = sized[0].view.options.driver_work_bytes_max
        return place_of(self.spark, bytes_max, *(task.stored_bytes for task in sized))
