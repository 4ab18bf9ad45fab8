"""What a feed is told: where its messages are, and what the table that takes them should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keytide.errors import InvalidError
from keytide.types import Field, RowType, parse_sql_type

__all__ = ["FeedRequest", "columns_of"]


@dataclass(frozen=True)
class FeedRequest:
    """A feed as its user asks for it; made once, at the edge.

    `columns` None and empty tuples mean: take it from the table, or from the feed. `continuous`
    goes on until it is stopped; otherwise the run ends when all files are read. `merge_schema` has
    the table grow with the feed.
    """

    warehouse: str
    table: str
    source: str
    format: str
    columns: tuple[Field, ...] | None = None
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    empty_as_null: tuple[str, ...] = ()
    checkpoint: str | None = None
    dead_letter: str | None = None
    max_files_per_batch: int | None = None
    continuous: bool = False
    merge_schema: bool = False


def columns_of(schema: str | Sequence[Field] | None) -> tuple[Field, ...] | None:
    """Columns given as SQL text or as fields. Raises `InvalidError` for other text."""
    if not isinstance(schema, str):
        return None if schema is None else tuple(schema)
    row = parse_sql_type(f"ROW<{schema}>")
    if not isinstance(row, RowType):
        raise InvalidError(
            f"the columns {schema!r} do not parse; write them as 'id BIGINT, name STRING'"
        )
    return row.fields
