"""A scan: a read request that is planned once and returns rows in the requested data structure."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.process import refuse_forked_child
from keytide.format.snapshot import Snapshot
from keytide.gate.gate import refuse_readers
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.predicate.text import text_of
from keytide.read.explanation import Explanation
from keytide.read.plan import ScanPlan
from keytide.read.pruning import asked_of_files
from keytide.read.row_source import RowSource
from keytide.read.task import ReadTask
from keytide.read.which_rows import WhichRows, plan_rows
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableState
from keytide.snapshot.view import TableView
from keytide.telemetry import span
from keytide.types import Field

__all__ = ["Scan"]


_LOG = logging.getLogger("keytide.plan")


@dataclass(frozen=True)
class Scan(RowSource):
    """The rows of one snapshot, in no guaranteed order: one merged row per key, if there are keys.

    A scan is lazy. It stays pinned to its snapshot, whatever is committed later. Methods that
    return everything need memory for the result. `to_batches` needs only as much as 'read.memory'.
    Problems with stored files are found when they are read, see `to_batches`.

    With `keys` (the key columns in their exact types), rows of other keys may be left out. `which`
    says which stored rows are shown, in tables with a key index. With a `limit`, at most this many
    rows are returned, whichever are read first.
    """

    state: TableState
    columns: tuple[str, ...]
    predicate: Predicate | None = None
    keys: pa.Table | None = field(default=None, repr=False)
    which: WhichRows = WhichRows.CURRENT
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    limit: int | None = None

    def __repr__(self) -> str:
        told = [
            self.view.name,
            "no snapshot" if self.snapshot is None else f"snapshot {self.snapshot.id}",
        ]
        told.append(f"columns {', '.join(self.columns)}")
        if self.predicate is not None:
            told.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            told.append(f"limit {self.limit}")
        return f"Scan({'; '.join(told)})"

    @property
    def view(self) -> TableView:
        """The table at the schema that the rows are read with."""
        return self.state.view

    @property
    def live(self) -> LiveFiles:
        """The files of the snapshot."""
        return self.state.live

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result."""
        return self.view.schema.select(self.columns)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is read. None if nothing was ever written."""
        return self.state.snapshot

    @property
    def parts(self) -> tuple[Scan, ...]:
        """The scan of each branch that is read: itself."""
        return (self,)

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """See `RowSource`."""
        return () if self.snapshot is None else (self.snapshot.id,)

    @cached_property
    def plan(self) -> ScanPlan:
        """What will be read, from metadata alone. Raises `DataError` for damaged metadata."""
        refuse_forked_child()
        with span("plan", self.view.name) as step:
            plan = plan_rows(self.state, self.which, self.predicate, self.keys)
            files = sum(len(bucket.files) for bucket in plan.buckets)
            step.numbers(buckets=len(plan.buckets), files=files)
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%r: %d buckets, %d files", self, len(plan.buckets), files)
        return plan

    def count(self) -> int:
        """The number of rows. Raises like `to_batches`."""
        schema = self.view.schema
        one_column = replace(self, columns=(schema.primary_keys or schema.names)[:1])
        return sum(frame.height for frame in one_column._frames())

    def explain(self) -> Explanation:
        """How the scan will be executed. Reads no data. Raises like `plan`."""
        sections = [section for bucket in self.plan.buckets for section in bucket.sections]
        merged = [section for section in sections if section.needs_merge]
        of_files = asked_of_files(self.predicate, self.view, sections)
        of_rows = [term for term in conjuncts(self.predicate) if term not in of_files]
        return Explanation(
            table=self.view.name,
            snapshot_id=None if self.snapshot is None else self.snapshot.id,
            merge_engine=self.view.options.merge_engine if self.view.kind.keeps_versions else None,
            funnel=self.plan.funnel,
            files_raw=sum(len(s.files) for s in sections if not s.needs_merge),
            files_merged=sum(len(s.files) for s in merged),
            sections_merged=len(merged),
            runs_max=max((len(s.runs) for s in merged), default=0),
            limit=self.limit,
            asked_of_files=self._shown(of_files),
            asked_of_rows=self._shown(of_rows),
        )

    def _shown(self, terms: Iterable[Predicate]) -> str | None:
        predicate = conjunction(terms)
        return None if predicate is None else text_of(predicate, self.view.schema.fields)

    def tasks(self) -> list[ReadTask]:
        """The scan as picklable tasks, one per bucket.

        Raises like `plan`, and `UnsupportedError` for a table that this release cannot read.
        """
        self._check_readable()
        return [
            ReadTask(self.view, bucket, self.columns, self.predicate)
            for bucket in self.plan.buckets
        ]

    def _check_readable(self) -> None:
        refuse_forked_child()
        refuse_readers(self.view.schema, self.view.options, self.view.name)
