"""Fallback branches: a table whose options name a second branch, which has other partitions.

`scan.fallback-branch` names a branch that has the partitions which the table lacks, and
`scan.primary-branch` one of which the table has the partitions that it lacks
(https://paimon.apache.org/docs/master/maintenance/manage-branches/). Other tables are read by the
functions of `scans` with the same names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, field, replace
from keytide.base.text import Moment
from keytide.errors import NotFoundError, UnsupportedError
from keytide.format.arrow import in_python
from keytide.format.schema import TableSchema
from keytide.options import keys
from keytide.predicate.condition import Condition, text_of
from keytide.predicate.predicate import Predicate
from keytide.read import requests
from keytide.read.scan import Explanation, ReadTask, RowSource, Scan, check_limit, head_of
from keytide.show.elements import notebook
from keytide.show.explanations import Plan, plan_list
from keytide.snapshot.branch_tables import open_branch
from keytide.snapshot.lineage import SchemasInForce
from keytide.snapshot.live_files import files_of
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedMetadata, PinnedTable, StoredTable, as_expected
from keytide.types import Field

# -- scans of two branches -------------------------------------------------------------------------


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

        # The state without all files of some partitions.
        state = fallback.state
        partitions = first.live.partition_buckets.keys()
        if state.snapshot is None:
            lacked = state
        else:
            files = state.live.files
            # By the stored partition itself: a condition would treat NULL and NaN as no value.
            left = files.filter(~files.column("_PARTITION").is_in([*partitions]))
            lacked = replace(
                state,
                live=files_of(state.snapshot, left),
                vector_files=tuple(f for f in state.vector_files if f.partition not in partitions),
                key_files=tuple(f for f in state.key_files if f.partition not in partitions),
            )
        return cls(
            first, replace(fallback, state=lacked), first.columns, first.predicate, limit=limit
        )

    def __repr__(self) -> str:
        parts = []
        for part in (self.first, self.fallback):
            snapshot = part.snapshot
            at = "no snapshot" if snapshot is None else f"snapshot {snapshot.id}"
            parts.append(f"{part.view.name}, {at}")
        parts.append(f"columns {', '.join(self.columns)}")
        if self.predicate is not None:
            parts.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            parts.append(f"limit {self.limit}")
        return f"FallbackScan({'; '.join(parts)})"

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
    columns = [
        tuple(f"{f.name} {f.type.with_nullable(True).sql()}" for f in schema.fields)
        for schema in (ours, theirs)
    ]
    for what, one, other in (
        ("columns", *columns),
        ("partition columns", ours.partition_keys, theirs.partition_keys),
        # The table may be without a key, for rows that are complete when they are written.
        ("key columns", ours.primary_keys, theirs.primary_keys if ours.primary_keys else ()),
    ):
        if one != other:
            raise UnsupportedError(
                f"table {first.name}: its {what} are ({', '.join(one)}), and in {fallback.name} "
                f"they are ({', '.join(other)}); a read of both branches needs the same. Alter one "
                "of them, or read each branch by its own name"
            )
    for view in (first, fallback):
        if view.schema.is_cross_partition:
            raise UnsupportedError(
                f"table {view.name}: its primary key lacks a partition column, so a read of two "
                "branches could return a key twice; read each branch by its own name"
            )


# -- reads of tables with a second branch ----------------------------------------------------------


_NAME_A_BRANCH = (keys.SCAN_FALLBACK_BRANCH, keys.SCAN_PRIMARY_BRANCH)


def reads_two_branches(table: StoredTable) -> bool:
    """Whether reads of the table also read another branch.

    Raises `UnsupportedError` if its options name two.
    """
    return _named(table.schema, table.name) is not None


def scan_table(
    table: StoredTable,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    snapshot_id: int | None = None,
    tag: str | None = None,
    as_of: Moment | None = None,
    skip_upsert: bool = False,
    skip_upsert_delete: bool = False,
    limit: int | None = None,
) -> Scan | FallbackScan:
    """A scan of one snapshot, by default the latest. Raises like `Table.scan`.

    Of the other branch, the snapshot at the time of the selected one is read.
    """
    table = table.pinned()
    named = _named(table.schema, table.name)
    if named is None:
        return requests.scan_table(
            table, columns, where, snapshot_id, tag, as_of, skip_upsert, skip_upsert_delete, limit
        )
    check_limit(limit, table.name)
    option, branch = named
    scan = partial(
        requests.scan_table, columns=columns, where=where, skip_upsert=skip_upsert,
        skip_upsert_delete=skip_upsert_delete,
    )  # fmt: skip
    own = scan(_alone(table), snapshot_id=snapshot_id, tag=tag, as_of=as_of)
    if as_of is None and (snapshot_id is not None or tag is not None):
        assert own.snapshot is not None  # the one that the caller named
        as_of = own.snapshot.time_millis
    try:
        other = scan(_alone(open_branch(table, branch).pinned()), as_of=as_of)
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; the option '{option}' of {table.name} names this branch. Read the table "
            f"without it after RESET ('{option}'), or read each branch by its own name"
        ) from error
    parts = (own, other) if option == keys.SCAN_FALLBACK_BRANCH else (other, own)
    return FallbackScan.of(*parts, limit)


def get_row(table: StoredTable, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    """The row of one key, or None. Raises like `Table.get`."""
    return as_expected(table, partial(_row, key=key))


def get_rows(table: StoredTable, keys: Sequence[Any]) -> pa.Table:
    """The rows of some keys, see `Table.get_many`."""
    return as_expected(table, partial(_rows, keys=keys))


def _row(table: PinnedTable, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    if not reads_two_branches(table):
        return requests.get_row(table, key)
    scan = scan_table(table, where=requests.key_condition(key, table.schema, table.name))
    return next(iter(in_python(scan.to_arrow())), None)


def _rows(table: PinnedTable, keys: Sequence[Any]) -> pa.Table:
    if not reads_two_branches(table):
        return requests.get_rows(table, keys)
    wanted, condition = requests.keys_condition(keys, table.schema, table.name)
    rows = scan_table(table, where=condition).to_polars()
    return requests.in_order_of_keys(rows, wanted, table.schema)


def _named(schema: TableSchema, table: str) -> tuple[str, str] | None:
    """The option that names another branch to read, and the branch. None if there is none."""
    given = {key: schema.options.get(key, "").strip() for key in _NAME_A_BRANCH}
    named = [(key, branch) for key, branch in given.items() if branch]
    if len(named) > 1:
        raise UnsupportedError(
            f"table {table}: both '{keys.SCAN_FALLBACK_BRANCH}' and '{keys.SCAN_PRIMARY_BRANCH}' "
            "are set; this release reads two branches. RESET one of the options"
        )
    return named[0] if named else None


def _alone(table: PinnedTable) -> PinnedTable:
    """The same branch, as if its options named no other one."""
    seen = table.metadata
    return PinnedTable(
        table.live, _BranchAlone(seen.store, seen.name, seen.commits, latest=seen.latest)
    )


class _BranchAlone(PinnedMetadata):
    """The metadata of a branch that is read without the other one that its options name."""

    def newest_schema(self) -> TableSchema:
        return _without_names(super().newest_schema())

    def schemas_in_force(self) -> SchemasInForce:
        found = super().schemas_in_force()
        alone = _without_names(found.schema), _without_names(found.newest)
        return replace(found, schema=alone[0], newest=alone[1])

    def schema(self, schema_id: int) -> TableSchema:
        return _without_names(super().schema(schema_id))


def _without_names(schema: TableSchema) -> TableSchema:
    options = {key: text for key, text in schema.options.items() if key not in _NAME_A_BRANCH}
    return replace(schema, options=options)
