"""Changes as users hold them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide import html
from keytide.table.changes import change_scan as core

__all__ = ["Changes"]


class Changes(core.Changes):
    """What happened after one snapshot up to another one, as rows with their `_row_kind`.

    Lazy: nothing is read before it is asked for, and what is committed later changes nothing.
    Methods that return everything need memory for the result; `to_batches` needs only what
    'read.memory' allows. Raises `DataError` naming the file that is missing or torn, when it is
    read.
    """

    @classmethod
    def of(cls, changes: core.Changes) -> Changes:
        """The same changes for users."""
        return cls(**{member.name: getattr(changes, member.name) for member in fields(changes)})

    def to_spark(self, spark: Any) -> Any:
        """The changes as a Spark DataFrame, found by its executors.

        A pair of -U and +U is next to each other in a partition, where the changes of a bucket
        come in order. Needs the `spark` extra. Raises as `plan`; what a task raises comes as
        Spark's PythonException with the text of the Keytide error.
        """
        from keytide.spark.change_scan import changes_to_spark

        return changes_to_spark(self, spark)

    def _repr_html_(self) -> str:
        columns = html.table(("column", "type"), [(f.name, f.type.sql()) for f in self.fields])
        return columns + html.preformatted(str(self.explain()))
