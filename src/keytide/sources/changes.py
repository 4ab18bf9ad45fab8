"""Changes between two versions of an external table, computed by comparing rows by key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from keytide.base.process import refuse_forked_child
from keytide.base.row_kind import ROW_KIND
from keytide.changes.kinds import with_shown_kind
from keytide.errors import InvalidError
from keytide.format.arrow import polars_schema
from keytide.merge.difference import difference
from keytide.read.row_source import RowSource
from keytide.snapshot.view import TableView
from keytide.sources.cut import KeyCut
from keytide.sources.merging import Merging
from keytide.sources.pinned import PinnedExternal
from keytide.types import Field, parse_sql_type
from keytide.types.widening import widened

__all__ = ["ExternalChanges"]

_KIND_FIELD = Field(-1, ROW_KIND, parse_sql_type("STRING NOT NULL"))
_PARTS = 16


@dataclass(frozen=True)
class ExternalChanges(RowSource):
    """What changed between two versions of an external table, as rows with their `_row_kind`.

    Keys in only one of the versions give '+I' or '-D'. Rows that differ give the before image '-U',
    directly followed by the after image '+U'. Lazy: nothing is read until a method asks for rows.
    """

    before: PinnedExternal
    after: PinnedExternal
    threads: int = 1

    @property
    def view(self) -> TableView:
        """The table's definition."""
        return self.after.view

    @property
    def versions(self) -> tuple[str | None, str | None]:
        """The two versions, from older to newer."""
        return self.before.source.version, self.after.source.version

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Always empty, because external tables have no snapshots in the lake."""
        return ()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result: `_row_kind` and the columns of the table."""
        return (_KIND_FIELD, *self.view.schema.fields)

    def tasks(self) -> list[ChangesTask]:
        """The work as a list of one picklable task.

        Raises what reading the source's metadata does.
        """
        refuse_forked_child()
        names = self.view.schema.names
        before = Merging(self.before.versions(), self._known_before())
        return [ChangesTask(before, Merging(self.after.versions(), names))]

    def _known_before(self) -> tuple[str, ...]:
        """The columns that the older version has too.

        Raises `InvalidError` for a column whose older values cannot be read as its current type.
        """
        then = self.before.view.schema.by_name
        known = [field for field in self.view.schema.fields if field.name in then]
        try:
            for field in known:
                widened(then[field.name].type, field.type, (field.name,))
        except InvalidError as error:
            raise InvalidError(
                f"table {self.view.name}: versions {' and '.join(map(str, self.versions))} "
                f"cannot be compared: {error}"
            ) from error
        return tuple(field.name for field in known)

    def count(self) -> int:
        """The number of rows. Raises as `to_batches`."""
        return sum(frame.height for frame in self._frames())


@dataclass(frozen=True)
class ChangesTask:
    """Merges both versions and compares them, one part of the keys at a time. Can be pickled.

    A column that the older version lacks is NULL there.
    """

    before: Merging
    after: Merging

    @property
    def view(self) -> TableView:
        """See `FramesTask`."""
        return self.after.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """See `FramesTask`."""
        names, key = self.view.schema.names, self.view.schema.primary_keys
        share = memory_bytes // 4
        empty = pl.DataFrame(schema=polars_schema(self.view.schema.fields))
        with (
            closing(KeyCut(key, _PARTS, share)) as then,
            closing(KeyCut(key, _PARTS, share)) as now,
        ):
            for cut, side in ((then, self.before), (now, self.after)):
                for rows in side.frames(memory_bytes - 2 * share):
                    cut.add(_with_columns_of(empty, rows))
            for before, after in zip(then.parts(), now.parts(), strict=True):
                told = difference(pl.concat([empty, *before]), pl.concat([empty, *after]), key)
                if told.height:
                    yield with_shown_kind(told, names)


def _with_columns_of(after: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the columns and types of the newer version."""
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(type_)
        for name, type_ in after.schema.items()
    )
