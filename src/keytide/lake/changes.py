"""The `Changes` class: what changed between two snapshots, as public object."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide.base.arguments import check_spark_session
from keytide.changes import change_scan as core
from keytide.changes.changed_rows import changed_rows
from keytide.errors import KeytideError
from keytide.show.story import changes_table
from keytide.show.svg import notebook, paragraph, problem
from keytide.show.tables import columns_table

__all__ = ["Changes"]

_ROWS_SHOWN = 20


class Changes(core.Changes):
    """What changed after one snapshot up to another one, as rows with their `_row_kind`.

    Lazy: nothing is read until a method asks for rows, and later commits have no effect. Methods
    that return everything need memory for the result. `to_batches` needs only as much as
    'read.memory' allows. Reading raises `DataError`, naming the file, when one is missing or
    corrupt.
    """

    @classmethod
    def of(cls, changes: core.Changes) -> Changes:
        """Wrap the internal changes object."""
        return cls(**{member.name: getattr(changes, member.name) for member in fields(changes)})

    def to_spark(self, spark: Any) -> Any:
        """The changes as a Spark DataFrame, computed by the executors.

        The rows '-U' and '+U' of an update are adjacent in a partition, where the changes of a
        bucket are in order. Needs the `spark` extra. Raises as `plan`. An error in a task arrives
        as Spark's PythonException with the message of the Keytide error.
        """
        check_spark_session(spark, "Changes.to_spark")
        from keytide.spark.read import changes_to_spark

        return changes_to_spark(self, spark)

    def _repr_html_(self) -> str:
        try:
            found = changed_rows(self, self.start_id, _ROWS_SHOWN)
        except (KeytideError, OSError) as error:
            columns = [(f.name, f.type.sql()) for f in self.fields]
            return notebook(problem(error), columns_table(("Column", "Type"), columns))
        return notebook(paragraph(found.found_by, class_="muted"), changes_table(found))
