"""The history of a key, from its stored versions, for pictures and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from keytide.show.cells import Cell, rows_of
from keytide.show.story import Story, Version

__all__ = ["ToldVersions", "story_of"]

# The number of columns in `Why.versions` before those of the table.
_BEFORE = 6


class ToldVersions(Protocol):
    """What a story is made of; see `Why`."""

    @property
    def key(self) -> Mapping[str, Any]:
        """The key."""

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that was read."""

    @property
    def merge_engine(self) -> str:
        """What merges the versions."""

    @property
    def versions(self) -> pa.Table:
        """The versions, each with its outcome."""

    @property
    def row(self) -> Mapping[str, Any] | None:
        """The row that they result in."""

    @property
    def taken(self) -> Mapping[str, tuple[int, ...]]:
        """From which versions each value comes."""

    @property
    def has_expired(self) -> bool:
        """Whether the row is not shown for its age."""


def story_of(why: ToldVersions) -> Story:
    """The versions in order, and the row. Long values are shortened.

    Raises `UnsupportedError` for a type that cannot be spelled.
    """
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
    shown = _shown(why.key, fields)
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
        number, str(kind), place, _number(schema_id), _number(sequence),
        tuple(values.items()), gives, outcome,
    )  # fmt: skip


def _number(found: object) -> int | None:
    """None if a version has no such number, as in files of other engines."""
    return None if found is None else int(str(found))


def _row(
    why: ToldVersions, fields: Sequence[pa.Field]
) -> tuple[tuple[str, Cell, tuple[int, ...]], ...]:
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
