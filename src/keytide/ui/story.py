"""Why the row of a key is what it is, as a story of its versions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from keytide.definition.kind import require_key
from keytide.errors import InvalidError
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.table import Table
from keytide.predicate.values.single import scalar_of_text
from keytide.read.story import story_of
from keytide.show.story import Story
from keytide.types import Field

__all__ = ["KeyColumn", "key_columns", "story_of_texts"]


@dataclass(frozen=True)
class KeyColumn:
    """A column of the key, for the form."""

    name: str
    type: str


def key_columns(table: Table | ForeignTable) -> tuple[KeyColumn, ...]:
    """The key columns of the table; none for a table without a key."""
    schema = table.table_schema
    fields = schema.select(schema.primary_keys)
    return tuple(KeyColumn(f.name, f.type.with_nullable(True).sql()) for f in fields)


def story_of_texts(
    table: Table | ForeignTable, texts: Sequence[str], snapshot: str | None
) -> Story:
    """The story of a key that is written as strings.

    `snapshot` is an id or the name of a tag, of a foreign table a version. Raises `InvalidError`
    for what is no key, and as `Table.why`.
    """
    schema = table.table_schema
    require_key(schema, table.name, "a story of a key", "Query it with SQL")
    fields = schema.select(schema.primary_keys)
    if len(texts) != len(fields):
        raise InvalidError(
            f"the primary key of {table.name} is {', '.join(schema.primary_keys)}; found "
            f"{len(texts)} values"
        )
    key = {f.name: _value(t, f, table.name) for f, t in zip(fields, texts, strict=True)}
    if isinstance(table, ForeignTable):
        return story_of(table.why(key, version=snapshot))
    if snapshot is None:
        return story_of(table.why(key))
    if snapshot.isdecimal():
        return story_of(table.why(key, snapshot_id=int(snapshot)))
    return story_of(table.why(key, tag=snapshot))


def _value(text: str, field: Field, table: str) -> object:
    """A value of a key column. Bytes are written in base64."""
    if not pa.types.is_binary(field.type.to_arrow()):
        return scalar_of_text(text, field, table)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidError(
            f"table {table}: key column {field.name!r} is {field.type.sql()}, found {text!r}; "
            f"write its bytes as base64: {error}"
        ) from error
