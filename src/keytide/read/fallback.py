"""A scan of two branches of a table: one of them has the partitions that the other one lacks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import polars as pl

from keytide.base.arguments import checked
from keytide.errors import UnsupportedError
from keytide.format.schema import TableSchema
from keytide.predicate.predicate import Predicate
from keytide.predicate.text import text_of
from keytide.read.explanation import Explanation
from keytide.read.scan import ReadTask, RowSource, Scan, head_of
from keytide.show.plan import plan_list
from keytide.show.plan_tree import Plan
from keytide.show.svg import notebook
from keytide.snapshot.live_files import files_of
from keytide.snapshot.state import TableState, TableView
from keytide.types import Field

__all__ = ["FallbackExplanation", "FallbackScan"]


@dataclass(frozen=True)
class FallbackScan(RowSource):
    """The rows of one branch and, in partitions of which it has no files, those of another one.

    In no guaranteed order: one merged row per key, if there are keys. The scan is lazy and keeps
    reading the same two snapshots, whatever is committed later. With a `limit`, at most this many
    rows are returned, whichever are read first.
    """

    first: Scan
    fallback: Scan
    columns: tuple[str, ...]
    predicate: Predicate | None = None
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    limit: int | None = None

    @classmethod
    def of(cls, first: Scan, fallback: Scan, limit: int | None) -> FallbackScan:
        """The scan of two branches, from one scan of each that selects the same rows and columns.

        Raises `UnsupportedError` for branches whose rows are not of one kind.
        """
        refuse_other_rows(first.view, fallback.view)
        lacked = _without_partitions(fallback.state, first.live.partition_buckets.keys())
        return cls(
            first, replace(fallback, state=lacked), first.columns, first.predicate, limit=limit
        )

    def __repr__(self) -> str:
        told = [f"{part.view.name}, {_snapshot_of(part)}" for part in (self.first, self.fallback)]
        told.append(f"columns {', '.join(self.columns)}")
        if self.predicate is not None:
            told.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            told.append(f"limit {self.limit}")
        return f"FallbackScan({'; '.join(told)})"

    @property
    def parts(self) -> tuple[Scan, Scan]:
        """The scan of each branch. Their rows together are those of this scan, before its limit."""
        first = replace(self.first, columns=self.columns, predicate=self.predicate)
        fallback = replace(self.fallback, columns=self.columns, predicate=self.predicate)
        return first, fallback

    @property
    def view(self) -> TableView:
        """The branch that is read first."""
        return self.first.view

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result. Nullable if one of the branches allows NULL."""
        ours, theirs = (part.fields for part in self.parts)
        return tuple(
            replace(one, type=one.type.with_nullable(one.type.nullable or other.type.nullable))
            for one, other in zip(ours, theirs, strict=True)
        )

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Empty: each part has a snapshot of its own branch."""
        return ()

    def tasks(self) -> list[ReadTask]:
        """The scan as picklable tasks, one per bucket. Raises like `Scan.tasks`."""
        return [task for part in self.parts for task in part.tasks()]

    def count(self) -> int:
        """The number of rows. Raises like `to_batches`."""
        return sum(part.count() for part in self.parts)

    def explain(self) -> FallbackExplanation:
        """How the scan will be executed. Reads no data. Raises like `Scan.plan`."""
        first, fallback = (part.explain() for part in self.parts)
        return FallbackExplanation(first, fallback)

    def _frames_in_turn(self) -> Iterator[pl.DataFrame]:
        return chain.from_iterable(part._frames_in_turn() for part in self.parts)

    def _frames(self) -> Iterator[pl.DataFrame]:
        frames = chain.from_iterable(part._frames() for part in self.parts)
        return frames if self.limit is None else head_of(frames, self.limit)


@dataclass(frozen=True)
class FallbackExplanation:
    """The plans of both branches, made without reading data."""

    first: Explanation
    fallback: Explanation

    def __str__(self) -> str:
        return f"{self.first}\npartitions without files there: {self.fallback}"

    @checked
    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        """The explanation as a tree of steps; `notes` are shown below its title."""
        title = f"scan of {self.first.table}, and of {self.fallback.table} for other partitions"
        return Plan(title, notes, children=(self.first.plan(), self.fallback.plan()))

    def _repr_html_(self) -> str:
        return notebook(plan_list(self.plan()))


def refuse_other_rows(first: TableView, fallback: TableView) -> None:
    """Raise `UnsupportedError` for branches whose rows differ in more than their values."""
    ours, theirs = first.schema, fallback.schema
    for what, one, other in (
        ("columns", _columns(ours), _columns(theirs)),
        ("partition columns", ours.partition_keys, theirs.partition_keys),
        # The table may be without a key, for rows that are complete when they are written.
        ("key columns", ours.primary_keys, theirs.primary_keys if ours.primary_keys else ()),
    ):
        if one != other:
            raise UnsupportedError(
                f"table {first.name}: its {what} are {_shown(one)}, and in {fallback.name} they "
                f"are {_shown(other)}; a read of both branches needs the same. Alter one of them, "
                "or read each branch by its own name"
            )
    for view in (first, fallback):
        if view.schema.is_cross_partition:
            raise UnsupportedError(
                f"table {view.name}: its primary key lacks a partition column, so a read of two "
                "branches could return a key twice; read each branch by its own name"
            )


def _columns(schema: TableSchema) -> tuple[str, ...]:
    return tuple(f"{f.name} {f.type.with_nullable(True).sql()}" for f in schema.fields)


def _shown(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})"


def _snapshot_of(scan: Scan) -> str:
    return "no snapshot" if scan.snapshot is None else f"snapshot {scan.snapshot.id}"


def _without_partitions(state: TableState, partitions: Collection[bytes]) -> TableState:
    """The state without all files of some partitions."""
    if state.snapshot is None:
        return state
    files = state.live.files
    # By the stored partition itself: a condition would treat NULL and NaN as no value.
    left = files.filter(~files.column("_PARTITION").is_in([*partitions]))
    return replace(
        state,
        live=files_of(state.snapshot, left),
        vector_files=tuple(f for f in state.vector_files if f.partition not in partitions),
        key_files=tuple(f for f in state.key_files if f.partition not in partitions),
    )
