"""Why a row is what it is: its stored versions, the effect of each, and the history of its key.

In a table with a key index, nothing is merged. The rows of a key are judged in the order in which
they arrived, as writes judge them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RowKind
from keytide.base.text import counted
from keytide.errors import UnsupportedError
from keytide.format.arrow import polars_schema, to_arrow
from keytide.format.data_file import POSITION
from keytide.format.manifest_entry import ManifestEntry
from keytide.key_index.indexed_keys import NOTHING
from keytide.merge.explanation import VERSION, Provenance, outcomes, provenance_of, shown
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND
from keytide.options.keys import RECORD_LEVEL_EXPIRE_TIME as _LIFETIME
from keytide.options.keys import UPSERT_MODE
from keytide.predicate.predicate import conjunction, conjuncts
from keytide.read.merged_versions import Lifetime
from keytide.read.plan import MARKED_DEAD
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile, Section
from keytide.show.elements import Cell, element, named, notebook, paragraph, rows_of
from keytide.show.explanations import Story, Version, story_list
from keytide.snapshot.state import TableView
from keytide.types import Field, arrow_schema

# -- tables with a key index -----------------------------------------------------------------------


THE_ROW = "the row"
DELETE = "a delete, kept to detect late rows"

JudgedRow = tuple[ManifestEntry, pl.DataFrame, str]
"""The file of a row, the row with its number and kind, and what happened to it."""


def judged_rows(scan: Scan, key: Mapping[str, Any]) -> list[JudgedRow]:
    """Every stored row of a key in the order of arrival. `scan` must select exactly this key."""
    rows = sorted(_stored(scan), key=lambda each: (each[0].file.min_sequence_number, each[1]))
    outcomes, last = list[str](), -1
    late = _late(scan, [row for *_, row in rows])
    for place, ((_, _, lives, _), is_late) in enumerate(zip(rows, late, strict=True)):
        if is_late:
            outcomes.append("skipped: it arrived after a newer row")
            continue
        if last >= 0:
            outcomes[last] = "replaced by a later row"
        last = place
        outcomes.append(THE_ROW if lives else DELETE)
    judged = []
    for (entry, _, _, row), outcome in zip(rows, outcomes, strict=True):
        # No kind is stored, so for a row followed by others, the kind is unknown.
        kind = RowKind.DELETE if outcome == DELETE else RowKind.INSERT
        judged.append(
            (entry, row.with_columns(pl.lit(int(kind), pl.Int8).alias(VALUE_KIND)), outcome)
        )
    return judged


def _late(scan: Scan, rows: list[pl.DataFrame]) -> list[bool]:
    """Whether each row is behind an earlier one."""
    comparison = scan.view.comparison
    if not rows or not comparison.fields:
        return [False] * len(rows)
    names = list(comparison.names)
    numbers = comparison.numbers(
        to_arrow(pl.concat([row.select(names) for row in rows]), arrow_schema(comparison.fields))
    )
    before = np.full_like(numbers, NOTHING)
    before[:, 1:] = np.maximum.accumulate(numbers, axis=1)[:, :-1]
    late = np.any((numbers < before) & comparison.compared_columns(numbers), axis=0)
    return [bool(each) for each in late]


def _stored(scan: Scan) -> Iterator[tuple[ManifestEntry, int, bool, pl.DataFrame]]:
    """The rows of the key: file, position, whether the row is live, and the row itself."""
    view = scan.view
    columns = (*view.schema.names, POSITION)
    for bucket in scan.plan.buckets:
        stored = StoredVersions(view, bucket.partition, columns, scan.predicate)
        for file in bucket.files:
            living = {*stored.of_file(file)[POSITION].to_list()}
            for row in stored.of_file(PlannedFile(file.entry, has_kinds=False)).iter_slices(1):
                position = int(row[POSITION].item())
                number = file.meta.min_sequence_number + position
                lives = position in living
                number_of_row = pl.lit(number, pl.Int64).alias(SEQUENCE_NUMBER)
                yield file.entry, position, lives, row.drop(POSITION).with_columns(number_of_row)


# -- the history of a key --------------------------------------------------------------------------


# The number of columns in `Why.versions` before those of the table.
_BEFORE = 6


def story_of(why: Why) -> Story:
    """The versions in order, and the row. Long values are shortened.

    Raises `UnsupportedError` for a type that cannot be spelled.
    """
    stored = why.versions
    fields = list(stored.schema)[_BEFORE:-1]
    names = [field.name for field in fields]
    values = rows_of(stored.select(range(_BEFORE, _BEFORE + len(names))))
    about = zip(*(stored.column(place).to_pylist() for place in range(_BEFORE)), strict=True)
    outcomes = stored.column(stored.num_columns - 1).to_pylist()
    versions = []
    for facts, cells, outcome in zip(about, values, outcomes, strict=True):
        number, file, level, schema_id, sequence, kind = facts
        place = f"{file}" if level is None else f"level {level}, {file}"
        pairs = tuple(zip(names, cells, strict=True))
        gives = frozenset(name for name, numbers in why.taken.items() if number in numbers)
        versions.append(
            Version(number, str(kind), place, schema_id, sequence, pairs, gives, outcome)
        )
    key, row = _shown(why.key, fields), None
    if why.row is not None:
        cells_of_row = _shown(why.row, fields)
        row = tuple((name, cell, why.taken.get(name, ())) for name, cell in cells_of_row)
    return Story(key, why.snapshot_id, why.merge_engine, tuple(versions), row, why.has_expired)


def _shown(
    values: Mapping[str, object], fields: Sequence[pa.Field]
) -> tuple[tuple[str, Cell], ...]:
    own = [field for field in fields if field.name in values]
    if not own:
        return ()
    given = (values[f.name] for f in own)
    plain = [each.as_py() if isinstance(each, pa.Scalar) else each for each in given]
    columns = [pa.array([each], f.type) for each, f in zip(plain, own, strict=True)]
    (row,) = rows_of(pa.table(columns, names=[f.name for f in own]))
    return tuple(zip((f.name for f in own), row, strict=True))


# -- explanations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Why:
    """The stored versions of one key in merge order, and the row that they result in.

    - `versions` has one row for each version: its number `version` from 1, the `file` that stores
      it with `level` and `schema_id`, `_SEQUENCE_NUMBER`, `row_kind`, every column of the table,
      and `outcome`, a sentence that says how the version affected the result. If a column of the
      table has one of these names, the name of the added column starts with an extra `_`.
    - `row` is what `get` returns.
    - `taken` maps each column outside the primary key to the versions that its value comes from.
      For a value that was copied, this is one version. For an aggregate, these are all versions
      whose values the function received (for `max` and `min`, those that have the result). It is
      empty when no version gave a value, and when there is no row.

    A NULL appears as the column's default in `row`, and as NULL in `versions`.

    A stored version can be the result of an earlier merge: by a write that contained the key
    several times, or by a compaction. The versions that it was merged from are no longer stored.
    """

    table: str
    key: Mapping[str, Any]
    snapshot_id: int | None
    merge_engine: str
    versions: pa.Table
    row: dict[str, Any] | None
    taken: Mapping[str, tuple[int, ...]]
    has_expired: bool = False
    """Whether the row is hidden because of its age. `taken` still describes it."""

    def to_arrow(self) -> pa.Table:
        """The versions."""
        return self.versions

    def __str__(self) -> str:
        key = ", ".join(f"{name} = {shown(value)}" for name, value in self.key.items())
        count = counted(self.versions.num_rows, "version")
        when = "" if self.snapshot_id is None else f", snapshot {self.snapshot_id}"
        lines = [f"{self.table}, {key}{when}: {count} ({self.merge_engine})"]
        names = self.versions.schema.names[len(_SYSTEM_COLUMNS) : -1]
        for row in zip(*(column.to_pylist() for column in self.versions.columns), strict=True):
            (number, file, level, _, sequence, kind), values = row[:6], row[6:-1]
            cells = zip(names, values, strict=True)
            columns = [f"{name} = {shown(v)}" for name, v in cells if name not in self.key]
            place = "" if level is None else f"level {level}, "
            lines.append(f"{number:>3} {kind} {', '.join(columns)}".rstrip())
            lines.append(f"       {row[-1]}")
            lines.append(f"       {place}{SEQUENCE_NUMBER} {sequence}, {file}")
        if self.row is None:
            expired = f"no row: it has expired ('{_LIFETIME}')"
            return "\n".join([*lines, expired if self.has_expired else "no row"])
        lines.append("the row")
        for name, numbers in self.taken.items():
            many = "versions" if len(numbers) > 1 else "version"
            origin = f"from {many} {', '.join(map(str, numbers))}" if numbers else "from no version"
            lines.append(f"       {name} = {shown(self.row[name])}, {origin}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        try:
            story = story_list(story_of(self))
        except UnsupportedError:  # a type that has no spelling
            return notebook(element("pre", str(self)))
        pairs = ", ".join(f"{column} = {shown(value)}" for column, value in self.key.items())
        title = paragraph(element("strong", named(self.table)), ", ", named(pairs), class_="title")
        return notebook(title, story)


def why_of(scan: Scan, key: Mapping[str, Any]) -> Why:
    """What happened to the versions of a key. `scan` must select exactly this key.

    Reads only files that may contain the key. Raises the same errors as reading the row.
    """
    view = scan.view
    if view.kind.has_key_index:
        return _of_indexed(scan, key)
    histories: list[_History] = []
    for stored in _stored_versions(scan):
        first = 1 + sum(len(history.stored) for history in histories)
        histories.append(_History.of(stored, view, first))
    rows, lifetime = scan.to_pylist(), Lifetime.of(view)
    if rows and lifetime is not None:
        young = replace(scan, predicate=conjunction([*conjuncts(scan.predicate), lifetime.shown]))
        has_expired = not young.to_pylist()
    else:
        has_expired = False
    made = [history.provenance for history in histories if history.provenance is not None]
    origin = next((each for each in made if each.row.height), None)
    return Why(
        table=view.name,
        key=dict(key),
        snapshot_id=None if scan.snapshot is None else scan.snapshot.id,
        merge_engine=view.options.merge_engine,
        versions=_versions_table(histories, view),
        row=rows[0] if rows and not has_expired else None,
        taken={n: () if origin is None else origin.taken[n] for n in _value_columns(view)},
        has_expired=has_expired,
    )


def _of_indexed(scan: Scan, key: Mapping[str, Any]) -> Why:
    """The same for a table in which nothing is merged: the row is one of the stored rows."""
    view, judged, rows = scan.view, judged_rows(scan, key), scan.to_pylist()
    stored = [_Stored(entry, row) for entry, row, _ in judged]
    empty = pl.DataFrame(schema=polars_schema(view.schema.fields))
    found = pl.concat([row for _, row, _ in judged]) if judged else empty
    numbers = pl.int_range(1, 1 + pl.len(), dtype=pl.Int64).alias(VERSION)
    versions = found.with_columns(numbers)
    outcomes = [outcome for _, _, outcome in judged]
    history = _History(stored, versions, None, outcomes)
    at = [place for place, outcome in enumerate(outcomes, 1) if outcome == THE_ROW]
    return Why(
        table=view.name,
        key=dict(key),
        snapshot_id=None if scan.snapshot is None else scan.snapshot.id,
        merge_engine=f"{UPSERT_MODE} = {view.options.upsert_mode}",
        versions=_versions_table([history] if judged else [], view),
        row=rows[0] if rows else None,
        taken={name: tuple(at) for name in _value_columns(view)},
    )


def _value_columns(view: TableView) -> list[str]:
    return [name for name in view.schema.names if name not in view.schema.primary_keys]


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    """A stored version. `hidden` says why readers skip it."""

    entry: ManifestEntry
    row: pl.DataFrame
    hidden: str | None = None


def _stored_versions(scan: Scan) -> Iterator[list[_Stored]]:
    """The versions in each bucket that has some (usually one), in the order of its files."""
    view, plan = scan.view, scan.plan
    sections = {(bucket.partition, bucket.bucket): bucket.sections for bucket in plan.buckets}
    hidden = {(file.entry.partition, file.entry.bucket) for file in plan.hidden}
    for partition, bucket in dict.fromkeys((*sections, *hidden)):
        stored = StoredVersions(
            view, partition, (*view.schema.names, *SYSTEM_COLUMNS), scan.predicate
        )
        planned = sections.get((partition, bucket), ())
        found = [
            *(version for section in planned for version in _of_section(section, stored)),
            *(
                _Stored(file.entry, row, file.reason)
                for file in plan.hidden
                if (file.entry.partition, file.entry.bucket) == (partition, bucket)
                for row in stored.of_file(PlannedFile(file.entry)).iter_slices(1)
            ),
        ]
        if found:
            yield found


def _of_section(section: Section, stored: StoredVersions) -> list[_Stored]:
    """The versions in a section. Those that a lower level contains, and dead ones, are hidden."""
    found = []
    for file in section.files:
        for row in stored.of_file(file.as_stored()).iter_slices(1):
            hidden = None
            # The file has exactly one version of the key.
            if file.dead_rows is not None and not stored.of_file(file).height:
                hidden = MARKED_DEAD if row.select(IS_ADD.all()).item() else _KEPT_DELETE
            found.append(_Stored(file.entry, row, hidden))
    upper = {id(file.entry) for run in section.containing for file in section.runs[run]}
    levels = [each.entry.file.level for each in found if id(each.entry) in upper]
    lowest = min(levels, default=0)
    return [
        replace(each, hidden=f"not counted again: the version on level {lowest} contains it")
        if id(each.entry) in upper and each.entry.file.level > lowest
        else each
        for each in found
    ]


_KEPT_DELETE = "marked as deleted: a delete, kept to detect late rows"


# -- merging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _History:
    """The versions in a bucket in merge order, and what happened to them."""

    stored: list[_Stored]
    versions: pl.DataFrame
    provenance: Provenance | None
    outcomes: list[str]

    @classmethod
    def of(cls, stored: list[_Stored], view: TableView, first: int) -> _History:
        """The versions, numbered from `first`."""
        order, engine = view.order, view.engine
        rows = pl.concat(each.row for each in stored).with_row_index(VERSION)
        versions = order.sort(rows)
        ordered = [stored[place] for place in versions[VERSION]]
        numbers = pl.int_range(first, first + pl.len(), dtype=pl.Int64)
        versions = versions.with_columns(numbers.alias(VERSION))
        # Hidden versions are described, but must not change the outcome of the others.
        seen = versions.filter(pl.Series([each.hidden is None for each in ordered]))
        with view.naming_table():
            provenance = provenance_of(seen, order, engine)
        texts = iter(outcomes(seen, provenance, order, engine, _value_columns(view)))
        said = [each.hidden or next(texts) for each in ordered]
        return cls(ordered, versions, provenance, said)

    def table(self, fields: Sequence[Field]) -> pa.Table:
        """The versions as rows of `Why.versions`."""
        files = [each.entry.file for each in self.stored]
        kinds = [RowKind(kind).short for kind in self.versions[VALUE_KIND]]
        columns = [
            self.versions[VERSION].to_list(),
            [file.file_name for file in files],
            [file.level for file in files],
            [file.schema_id for file in files],
            self.versions[SEQUENCE_NUMBER].to_list(),
            kinds,
            *to_arrow(self.versions, _nullable(fields)).columns,
            self.outcomes,
        ]
        schema = versions_schema(fields)
        arrays = [
            column if isinstance(column, pa.ChunkedArray) else pa.array(column, each.type)
            for column, each in zip(columns, schema, strict=True)
        ]
        return pa.table(arrays, schema=schema)


_SYSTEM_COLUMNS = {
    "version": pa.int64(),
    "file": pa.string(),
    "level": pa.int32(),
    "schema_id": pa.int64(),
    SEQUENCE_NUMBER: pa.int64(),
    "row_kind": pa.string(),
}
_OUTCOME = ("outcome", pa.string())


def versions_schema(fields: Sequence[Field]) -> pa.Schema:
    """The columns of `Why.versions`."""
    own = _nullable(fields)

    def free(name: str) -> str:
        return name if name not in own.names else free(f"_{name}")

    before = [pa.field(free(name), type_) for name, type_ in _SYSTEM_COLUMNS.items()]
    return pa.schema([*before, *own, pa.field(free(_OUTCOME[0]), _OUTCOME[1])])


def _nullable(fields: Sequence[Field]) -> pa.Schema:
    """Columns that a delete leaves out may be NULL, even in a NOT NULL column."""
    return pa.schema([each.with_nullable(True) for each in arrow_schema(fields)])


def _versions_table(histories: Sequence[_History], view: TableView) -> pa.Table:
    fields = view.schema.fields
    return pa.concat_tables(
        [versions_schema(fields).empty_table(), *(history.table(fields) for history in histories)]
    )
