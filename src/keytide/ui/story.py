"""Why the row of a key is what it is, as a story of its versions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from keytide.errors import InvalidError
from keytide.lake.table import Table
from keytide.table.definition.kind import require_key
from keytide.table.read.why import Why
from keytide.table.values.single import scalar_of_text
from keytide.types import Field
from keytide.ui.cells import Cell, rows_of

__all__ = ["KeyColumn", "Story", "Version", "key_columns", "story_of"]

# What `Why.versions` has before the columns of the table.
_BEFORE = 6


@dataclass(frozen=True)
class KeyColumn:
    """A column of the key, for a form that asks for it."""

    name: str
    type: str


@dataclass(frozen=True)
class Version:
    """A stored version, and what became of it; `gives` are the columns whose value it gave."""

    number: int
    kind: str
    place: str
    schema_id: int
    sequence: int
    values: tuple[tuple[str, Cell], ...]
    gives: frozenset[str]
    outcome: str


@dataclass(frozen=True)
class Story:
    """The versions in merge order, and the row that they became, with where each value is from."""

    key: tuple[tuple[str, Cell], ...]
    snapshot_id: int | None
    merge_engine: str
    versions: tuple[Version, ...]
    row: tuple[tuple[str, Cell, tuple[int, ...]], ...] | None
    has_expired: bool


def key_columns(table: Table) -> tuple[KeyColumn, ...]:
    """What a key of the table is made of; nothing for one without a key."""
    schema = table.table_schema
    fields = schema.select(schema.primary_keys)
    return tuple(KeyColumn(f.name, f.type.with_nullable(True).sql()) for f in fields)


def story_of(table: Table, texts: Sequence[str], snapshot: str | None) -> Story:
    """The story of a key that is written as texts; `snapshot` is an id or the name of a tag.

    Raises `InvalidError` for what is no key, and as `Table.why`.
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
    if snapshot is None:
        return _told(table.why(key), schema.primary_keys)
    if snapshot.isdecimal():
        return _told(table.why(key, snapshot_id=int(snapshot)), schema.primary_keys)
    return _told(table.why(key, tag=snapshot), schema.primary_keys)


def _value(text: str, field: Field, table: str) -> object:
    """A value of a column of the key, of which bytes are written in base64."""
    if not pa.types.is_binary(field.type.to_arrow()):
        return scalar_of_text(text, field, table)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidError(
            f"table {table}: key column {field.name!r} is {field.type.sql()}, found {text!r}; "
            f"write its bytes as base64: {error}"
        ) from error


def _told(why: Why, key: Sequence[str]) -> Story:
    stored = why.versions
    fields = list(stored.schema)[_BEFORE:-1]
    names = [field.name for field in fields]
    values = rows_of(stored.select(range(_BEFORE, _BEFORE + len(names))))
    about = [stored.column(place).to_pylist() for place in range(_BEFORE)]
    outcomes = stored.column(stored.num_columns - 1).to_pylist()
    versions = tuple(
        _version(told, dict(zip(names, cells, strict=True)), why.taken, outcome)
        for told, cells, outcome in zip(zip(*about, strict=True), values, outcomes, strict=True)
    )
    shown = _shown(why.key, [f for f in fields if f.name in key])
    row = None if why.row is None else _row(why, fields)
    return Story(shown, why.snapshot_id, why.merge_engine, versions, row, why.has_expired)


def _version(
    told: tuple[object, ...],
    values: Mapping[str, Cell],
    taken: Mapping[str, tuple[int, ...]],
    outcome: str,
) -> Version:
    number, file, level, schema_id, sequence, kind = told
    assert isinstance(number, int)
    gives = frozenset(name for name, numbers in taken.items() if number in numbers)
    place = f"{file}" if level is None else f"level {level}, {file}"
    return Version(
        number, str(kind), place, int(str(schema_id)), int(str(sequence)),
        tuple(values.items()), gives, outcome,
    )  # fmt: skip


def _row(why: Why, fields: Sequence[pa.Field]) -> tuple[tuple[str, Cell, tuple[int, ...]], ...]:
    assert why.row is not None
    return tuple((name, cell, why.taken.get(name, ())) for name, cell in _shown(why.row, fields))


def _shown(
    values: Mapping[str, object], fields: Sequence[pa.Field]
) -> tuple[tuple[str, Cell], ...]:
    own = [field for field in fields if field.name in values]
    if not own:
        return ()
    columns = [pa.array([_plain(values[f.name])], f.type) for f in own]
    (row,) = rows_of(pa.table(columns, names=[f.name for f in own]))
    return tuple(zip((f.name for f in own), row, strict=True))


def _plain(value: object) -> object:
    return value.as_py() if isinstance(value, pa.Scalar) else value
