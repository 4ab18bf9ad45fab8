"""The request for a feed: the source of its messages, and the definition of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.feeds.values import Encoding
from keytide.types import Field, RowType, parse_sql_type

__all__ = ["FeedRequest", "columns_of"]


@dataclass(frozen=True)
class FeedRequest:
    """A feed as the user requests it.

    `columns` None and empty tuples mean that the table or the feed defines them. `continuous` runs
    until it is stopped. Otherwise the run ends when all files are read. `merge_schema` adds new
    columns of the feed to the table. `encoding`, `epochs` and
    `source_table` are as in `FeedSpec` and `default_sequence`. Raises `InvalidError` for an
    `encoding` of another type.
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
    encoding: Encoding | None = None
    epochs: tuple[str, ...] = ()
    source_table: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.encoding, Encoding | None):
            raise InvalidError(
                f"encoding is {shown(self.encoding)}; expected a keytide.cdc.Encoding, such as "
                "debezium_encoding(decimal_handling_mode='precise')"
            )


def columns_of(schema: str | Sequence[Field] | None) -> tuple[Field, ...] | None:
    """Columns given as SQL text or as fields. Raises `InvalidError` for invalid text."""
    if not isinstance(schema, str):
        return None if schema is None else tuple(schema)
    row = parse_sql_type(f"ROW<{schema}>")
    if not isinstance(row, RowType):
        raise InvalidError(
            f"the columns {schema!r} cannot be parsed; write them as 'id BIGINT, name STRING'"
        )
    return row.fields
