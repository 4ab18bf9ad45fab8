"""Write tasks: the input that each part of a write needs, and its result.

Rows that arrive out of order can be counted. Merging handles them without help, but users who
monitor a feed want to know the number (Apache Pinot's upsert tables count them as well). The count
requires a lookup of the written keys, so it is enabled by the option 'write.count-out-of-order'.

Definitions are checked before they are stored: what every writer would refuse is refused.

Not every engine that passes on rows keeps their order. Then two rows of one key can be written
together only if sequence fields say which one is newer. All others are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import this_host
from keytide.base.row_kind import RowKind
from keytide.base.text import counted
from keytide.errors import UnsupportedError
from keytide.format.arrow import from_arrow
from keytide.format.index_files import Hashes, IndexKey
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.merge.order import is_late, with_ranks
from keytide.merge.refusal import named_rows
from keytide.options import keys
from keytide.read.lookup import key_range, newest_versions
from keytide.read.plan import plan_files
from keytide.read.scan import ReadTask
from keytide.snapshot.dynamic_buckets import PlacedKeys
from keytide.snapshot.live_files import NO_FILES, BucketId, BucketIndex, DeadRows, by_index_key
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import StoredTable, metadata_before_creation
from keytide.write.bucket_writer import BucketWriter, Seen, SequenceBase
from keytide.write.input_rows import Rows, incoming_rows
from keytide.write.layout import DynamicLayout, FixedLayout, Layout, Placing, PostponedLayout
from keytide.write.moved_keys import MovingLayout, no_confirmation
from keytide.write.partition_spec import PartitionSpec
from keytide.write.refusals import check_writable, refuse_unmergeable

# -- rows in unknown order -------------------------------------------------------------------------


class Order(Enum):
    """What the parts of a write know of the order of its rows."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    """All rows of a key are in one part, which refuses those between which order would decide."""
    UNKNOWN_TO_PARTS = "unknown to parts"
    """Rows of a key can be in any parts, so these only tell which places their rows have."""


def tie_columns(rows: pl.DataFrame, view: TableView) -> tuple[pl.DataFrame, ...]:
    """The columns that say whether rows tie, in one frame: keys, and values that order versions.

    Nothing for tables without a key, whose rows never tie.
    """
    if not view.kind.has_key:
        return ()
    terms = enumerate(view.order.sequence_terms(rows.schema))
    order = (term.alias(f"${number}") for number, term in terms)
    return (rows.select(*map(pl.col, view.schema.primary_keys), *order),)


def refuse_ties(view: TableView, places: Iterable[pl.DataFrame]) -> None:
    """Raise `UnsupportedError` if two rows of a write have the same place."""
    held = list(places)
    if not held:
        return
    rows = pl.concat(held)
    tied = rows.filter(rows.is_duplicated())
    if tied.height:
        key = view.schema.primary_keys
        by = " and ".join(["key", *view.order.sequence])
        raise UnsupportedError(
            f"table {view.name}: {counted(tied.height, 'row')} of this write have the same {by} as "
            f"another one, the first with {named_rows(tied.head(1), key)}. This Spark Connect "
            "server does not keep the order of rows, so none of them is the later one. Write one "
            f"row per key, set '{keys.SEQUENCE_FIELD}' to a column that orders the rows, or sort "
            "the DataFrame and write df.toArrow()"
        )


# -- out-of-order rows -----------------------------------------------------------------------------


def count_out_of_order(
    rows: Rows, stored: TableState, written: Iterable[ManifestEntry], placing: Placing
) -> int:
    """The number of rows that are older than a version of their key that arrived before them.

    This can be a stored version, including files of `written`, or an earlier row. Rows of kind -U
    are not counted, because they announce nothing. Without sequence fields, no row is counted.
    Reads the stored versions of the keys. Runs in the driver or on an executor.
    """
    view = stored.view
    if not view.order.sequence:
        return 0
    rows = rows.filter(pc.not_equal(rows.kinds, int(RowKind.UPDATE_BEFORE)))
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in (*stored.live.entries, *written):
        files.setdefault((entry.partition, entry.bucket), []).append(entry)
    count, columns = 0, view.order.columns
    frame, cut = placing.cut(from_arrow(rows.table), rows.table, view)
    for bucket, part in cut.parts(frame):
        own, keys_of_part = part.select(columns), part.select(view.order.key).unique()
        # The versions of these keys. Without any file, an empty frame with the right types.
        before = [own.clear()]
        entries, keys_between = files.get(bucket, []), key_range(keys_of_part)
        for plan in plan_files(view, entries, keys_between, stored.vector_files).buckets:
            found = newest_versions(ReadTask(view, plan, columns), keys_of_part, columns)
            before += [each.select(columns) for each in found]
        ranked = with_ranks(own, pl.concat(before), view.order)
        count += int(ranked.select(is_late(view.order).sum()).item())
    return count


# -- write tasks -----------------------------------------------------------------------------------


RUNS_PER_PART = 1 << 16
"""The distance between the sequence numbers of neighboring parts.

Parts are written in parallel and do not know how many runs the others need. A part with more runs
would use numbers of the next part. At the size of a write buffer, it would contain terabytes.
"""

# Small buckets are sorted and merged together until they have this many rows.
_BATCH_ROWS = 64 << 10


@dataclass(frozen=True)
class TaskResult:
    """The files that a task wrote, as entries to commit, and the number of rows that it received.

    - `changelog` are the files that contain the rows again, as they arrived.
    - `indexes` are the changes to indexes of buckets.
    - `errors` are the numbers of rows that were left out, by kind of error.
    - `places` are those of the rows, if their order is unknown and not yet checked.
    - `host` is where the task ran.
    """

    entries: tuple[ManifestEntry, ...]
    rows: int = 0
    out_of_order: int | None = None
    changelog: tuple[ManifestEntry, ...] = ()
    indexes: Mapping[IndexKey, BucketIndex] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    places: tuple[pl.DataFrame, ...] = field(default=(), compare=False)
    host: str = field(default_factory=this_host, compare=False)

    @property
    def placed(self) -> dict[BucketId, Hashes]:
        """The hashes of keys that the task was the first to put into buckets."""
        found = self.indexes.items()
        return {key[1:]: index.hashes for key, index in found if isinstance(index, PlacedKeys)}

    @property
    def dead(self) -> dict[BucketId, DeadRows]:
        """The dead rows of buckets whose deletion vectors the task is based on."""
        found = self.indexes.items()
        return {key[1:]: index for key, index in found if isinstance(index, DeadRows)}

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """The entries of all files."""
        return (*self.entries, *self.changelog)

    @classmethod
    def together(cls, parts: Iterable[TaskResult]) -> TaskResult:
        """The combined results of several tasks, in order.

        A count that one of them lacks is unknown.
        """
        made = list(parts)
        late = [part.out_of_order for part in made]
        indexes: dict[IndexKey, list[BucketIndex]] = {}
        errors: Counter[str] = Counter()
        for part in made:
            errors.update(part.errors)
            for key, index in part.indexes.items():
                indexes.setdefault(key, []).append(index)
        return cls(
            tuple(entry for part in made for entry in part.entries),
            sum(part.rows for part in made),
            None if None in late else sum(count or 0 for count in late),
            tuple(entry for part in made for entry in part.changelog),
            {key: first.joined(later) for key, (first, *later) in indexes.items()},
            dict(errors),
            tuple(places for part in made for places in part.places),
        )


@dataclass(frozen=True)
class WriteTask:
    """Writes rows as sorted runs, on top of the files that were live when the write began.

    `layout` assigns buckets to rows. `stored` is the state to compare rows with when out-of-order
    rows are counted, or None. With `has_changelog`, the rows are stored again as they arrived. Rows
    outside `partition` are refused. Picklable.
    """

    view: TableView
    layout: Layout
    base: SequenceBase
    stored: TableState | None = None
    partition: PartitionSpec | None = None
    has_changelog: bool = False
    threads: int = 1
    confirm: Callable[[], None] = no_confirmation
    """Called before work that takes long or that warns.

    Raises an error if the work would be in vain.
    """
    seen: Seen | None = None
    """Called with each run that is stored as one file."""
    order: Order = Order.KNOWN

    @classmethod
    def on(cls, state: TableState) -> WriteTask:
        """A task that writes on top of a snapshot. Raises the same errors as `layout_of`."""
        view, live = state.view, state.live
        stored = state.merging if view.options.counts_out_of_order else None
        has_changelog = view.options.changelog_producer == "input"
        base = SequenceBase.after(live)
        return cls(view, layout_of(state), base, stored, has_changelog=has_changelog)

    @classmethod
    def anew(cls, state: TableState, partition: PartitionSpec | None = None) -> WriteTask:
        """A task whose rows replace others, and are assigned to buckets as the table says now.

        An overwrite has no changelog, as in other engines: it could not describe what it replaced.
        """
        emptied = replace(state, live=NO_FILES, hash_files={})
        base = SequenceBase.after(state.live)
        return cls(state.view, layout_of(emptied), base, partition=partition)

    def of_statement(self) -> WriteTask:
        """The same for rows of a statement, each of which is the new state of its key's row."""
        return replace(self, stored=None)

    def feed(self, rows: Iterable[pa.Table], number: int) -> TaskResult:
        """Write each table of rows as one run per bucket.

        Within one write, the later row of a key is newer: rows of a later part, and within a part
        rows of a later run. If their order is unknown, rows between which it would decide are
        refused. Nothing is left behind after an error. Raises `InvalidError`,
        `NotFoundError` or `UnsupportedError` for rows that do not fit, `ConflictError` if a
        partition has another number of buckets, and `DataError` if the store fails.
        """
        # Later parts have higher numbers, whichever of them is written first.
        base = replace(self.base, offset=number * RUNS_PER_PART)
        placing = self.layout.begin()
        made = [TaskResult((), out_of_order=0 if self._counts_late else None)]
        try:
            for run in rows:
                made.append(self._write(run, base, placing, made))
                base = base.advanced(made[-1].entries, run.num_rows)
            written = TaskResult.together(made)
            if self.order is Order.UNKNOWN:
                refuse_ties(self.view, written.places)
                written = replace(written, places=())
        except BaseException:
            files = TaskResult.together(made).files
            paths = [path for file in files for path in self.view.stored_paths(file)]
            self.view.store.discard(paths)
            raise
        placed = {bucket: PlacedKeys(hashes) for bucket, hashes in placing.placed.items()}
        return replace(written, indexes={**written.indexes, **by_index_key(placed)})

    @property
    def _counts_late(self) -> bool:
        return self.stored is not None

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        """Write rows as one run per bucket. `before` is what was already written of the part."""
        view, late = self.view, None
        rows = incoming_rows(run, view.schema, view.options, view.name)
        if self.partition is not None:
            self.partition.check(rows.table)
        if self.stored is not None:
            known = TaskResult.together(before).entries
            late = count_out_of_order(rows, self.stored, known, placing)
        refuse_unmergeable(rows.frame, view, rows.refusals)
        made = self._placed(rows, base, placing, before)
        places = () if self.order is Order.KNOWN else tie_columns(rows.frame, view)
        return replace(made, rows=run.num_rows, out_of_order=late, places=places)

    def _placed(
        self, rows: Rows, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        """Write rows in the table's types into their buckets."""
        frame, cut = placing.cut(rows.frame, rows.table, self.view)
        batches = list(cut.batches(frame, _BATCH_ROWS))
        del cut  # it is as long as the rows, and no longer needed
        writer = BucketWriter(self.view, placing.total_buckets, self.has_changelog, self.seen)
        made = writer.write(batches, base, threads=self.threads)
        return TaskResult(made.data, frame.height, changelog=made.changelog)


# -- checks of definitions -------------------------------------------------------------------------


def try_definition(metadata: TableMetadata, definition: TableSchema) -> None:
    """Write no rows into a table with that definition, as if it were new. The store is not used.

    Raises the same errors as a write of rows.
    """
    first = replace(definition, id=0)
    view = StoredTable.of(metadata_before_creation(metadata, first)).view(first)
    check_writable(view)
    no_rows = first.arrow_schema().empty_table()
    WriteTask.on(TableState(view, NO_FILES, ())).feed([no_rows], 0)


def layout_of(state: TableState) -> Layout:
    """The layout for writing rows on top of a state.

    Raises `UnsupportedError` for a table with dynamic buckets whose index is incomplete.
    """
    view, partition_buckets = state.view, state.live.partition_buckets
    if view.postpones_buckets:
        return PostponedLayout(view.options, partition_buckets)
    if not view.has_dynamic_buckets:
        return FixedLayout(view.options, partition_buckets)
    layout = DynamicLayout(view.options, partition_buckets, state.hash_files)
    if view.moves_keys:
        return MovingLayout(view.merging, state.live.entries, layout, state.vector_files)

    for (partition, bucket), files in state.live.buckets.items():
        if not files.is_empty and bucket not in state.hash_files.get(partition, {}):
            raise UnsupportedError(
                f"table {state.view.name}: bucket {bucket} has files but no index of its keys, "
                "because an engine without this index wrote them, so Keytide does not know where "
                "existing keys are; overwrite the table with its own rows, which creates the "
                "index"
            )
    return layout
