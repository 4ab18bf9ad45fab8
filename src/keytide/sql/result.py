"""What a SQL statement gave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.process import require
from keytide.base.text import counted, has_union
from keytide.errors import UnsupportedError
from keytide.format.arrow import ArrowRows, from_arrow, in_pandas, in_python, named_apart
from keytide.show.elements import rows_of
from keytide.show.explanations import Plan

if TYPE_CHECKING:
    import pandas as pd


class Result(ArrowRows, ABC):
    """The result of an SQL statement. The methods return its rows in different formats.

    Statements that define something return no rows. On DuckDB the rows are already computed. On
    Spark they are computed on request, which raises `InvalidError` when Spark cannot compute a row,
    and what reading the tables raises.
    """

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table. Raises what computing them raises."""

    @property
    def row_count(self) -> int:
        """The number of rows returned, or changed by INSERT, UPDATE, DELETE or MERGE.

        Raises as `to_arrow`.
        """
        return int(self.to_arrow().num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns. Raises as `to_arrow`."""
        return self.to_arrow().schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches. Raises as `to_arrow`."""
        return (batch for batch in self.to_arrow().to_batches() if batch.num_rows)

    def count(self) -> int:
        """The number of returned rows. Raises as `to_arrow`."""
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        rows = counted(self.row_count, "row")
        return f"{type(self).__name__}({rows}{f': {columns}' if columns else ' changed'})"

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts. Raises as `to_arrow`.

        Of columns with one name, the later ones get a number: `id`, `id_1`. Raises
        `UnsupportedError` for a time outside the years 1 to 9999, which Python cannot represent.
        """
        return in_python(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars DataFrame. Raises as `to_arrow`.

        Columns have the names of `to_pylist`. Raises `UnsupportedError` for values of a UNION,
        which Polars does not have.
        """
        return from_arrow(_without_unions(named_apart(self.to_arrow()), "Polars"))

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame.

        Raises `SetupError` without pandas, `UnsupportedError` for values of a UNION, otherwise as
        `to_pylist`, except that two columns can have one name.
        """
        require("pandas", "pandas", "to_pandas")
        return in_pandas(_without_unions(self.to_arrow(), "pandas"))

    def to_spark(self) -> Any:
        """The rows as a Spark DataFrame. Raises `UnsupportedError` on the local engine."""
        raise UnsupportedError(
            "this lake has no Spark session; open it with connect(..., spark=spark), or use "
            "to_arrow()"
        )

    def _repr_html_(self) -> str:
        rows = self.to_arrow()
        if not rows.num_columns:
            return f"{counted(self.row_count, 'row')} changed"
        try:
            cells = rows_of(rows.slice(0, _ROWS_SHOWN))
        except UnsupportedError as error:
            return record.preformatted(f"{counted(rows.num_rows, 'row')}; {error}")
        head = [f"{field.name} {field.type}" for field in rows.schema]
        shown = record.table(head, ([_NULL if c is None else c for c in row] for row in cells))
        more = rows.num_rows - len(cells)
        return shown + (record.preformatted(f"{counted(more, 'more row')}") if more else "")


def _without_unions(rows: pa.Table, library: str) -> pa.Table:
    """The rows. Raises `UnsupportedError` if they contain values of a UNION."""
    for field in rows.schema:
        if has_union(field.type):
            raise UnsupportedError(
                f"column {field.name!r} contains values of a UNION, which {library} does not "
                "have; CAST them AS STRING, or read them with to_arrow()"
            )
    return rows


_ROWS_SHOWN = 10


_NULL = "NULL"


@dataclass(frozen=True, repr=False)
class LocalResult(Result):
    """Rows in this process."""

    rows: pa.Table

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.rows


@dataclass(frozen=True, repr=False)
class PlanResult(LocalResult):
    """What EXPLAIN of a change gives: a row for each step, indented below that it belongs to."""

    plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> PlanResult:
        """The same for a plan. Its title and its steps are at one level."""
        lines = [plan.title, *(line for step in plan.children for line in _lines(step))]
        return cls(pa.table({"plan": pa.array(lines, pa.string())}), plan)


def _lines(step: Plan) -> Iterator[str]:
    yield step.title
    for below in step.children:
        yield from (f"  {line}" for line in _lines(below))


@dataclass(frozen=True, repr=False)
class ChangeResult(Result):
    """The result of a statement that returns no rows."""

    changed: int = 0

    def to_arrow(self) -> pa.Table:
        """A table without columns."""
        return pa.table({})

    @property
    def row_count(self) -> int:
        """The number of changed rows."""
        return self.changed
