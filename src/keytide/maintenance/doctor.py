"""The health of a table: what slows down its readers or wastes space, and how to fix it.

The result comes from metadata and a listing of the table. No data is read. It describes the latest
snapshot, and what older snapshots and dead writers keep in addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.compaction.compact import why_not_compacted
from keytide.compaction.strategy import sorted_runs
from keytide.errors import DataError
from keytide.format.manifest_entry import ManifestEntry
from keytide.maintenance.expiry import Retention, expire_snapshots
from keytide.maintenance.history import consumers_of
from keytide.maintenance.orphans import AGE_MIN_MS, orphan_files
from keytide.maintenance.repair import unreadable_documents
from keytide.options import keys
from keytide.publish.publish import Publication, publications_of
from keytide.show.elements import element, named, notebook, paragraph, signs_table
from keytide.snapshot.branch_tables import branch_names, torn_branches
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store

# -- the health of a table -------------------------------------------------------------------------


# Above these limits, maintenance is worthwhile. Below, nothing is gained.
_SURPLUS_FILES = 10
_SKEW = 4
_RETRACTS_PERCENT = 20
_RETRACTS = 10_000
_MANIFESTS = 4


@dataclass(frozen=True)
class Sign:
    """One check of a table's health.

    `subject` is what was checked, `found` what was measured, and `expected` the healthy value.
    `action` is what to do, None when nothing needs to be done.
    """

    table: str
    subject: str
    found: str
    expected: str
    action: str | None


@dataclass(frozen=True)
class Diagnosis:
    """The health of a table, as a list of checks."""

    table: str
    signs: tuple[Sign, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs to be done."""
        return all(sign.action is None for sign in self.signs)

    def __str__(self) -> str:
        return "\n".join(
            f"{sign.subject}: {sign.found}; {sign.action or 'ok'}" for sign in self.signs
        )

    def _repr_html_(self) -> str:
        title = paragraph("Health of ", element("strong", named(self.table)), class_="title")
        return notebook(title, signs_table(self.signs))


def doctor(table: StoredTable) -> Diagnosis:
    """The health of the table: small files, sorted runs, skew, tombstones, snapshots, consumers,
    orphan files, branches, manifests, conversions, publishing.

    Each sign says what was found, what is healthy, and what to do otherwise. Reads metadata and
    lists the table, but reads no data. Raises `DataError` if the metadata of the latest snapshot is
    damaged.
    """
    table = table.uncached
    seen = table.pinned()
    metadata = seen.metadata
    snapshot = metadata.latest_snapshot()
    view, live = seen.view(seen.schema), seen.live_files(snapshot)
    files = _Files(view, [entry for entry in live.entries if entry.bucket >= 0])
    manifests = [] if snapshot is None else metadata.manifests(snapshot)

    # Snapshots that should have expired, which keep their files.
    limit = view.options.snapshots_expired_max
    kept, due = len(table.metadata.snapshot_ids()), expire_snapshots(table, dry_run=True)
    waiting = f", {due.snapshots:,} with {due.bytes:,} bytes can expire" if due.snapshots else ""
    snapshots = Sign(
        view.name,
        "snapshots",
        f"{counted(kept, 'snapshot')} kept{waiting}",
        f"at most {limit:,} that can expire, the number that one commit expires",
        "Call expire_snapshots(), or keytide expire" if due.snapshots > limit else None,
    )
    signs = (
        files.sizes(),
        files.runs(),
        files.skew(),
        files.tombstones(),
        snapshots,
        _consumers(table, view),
        _orphans(table, view),
        _branches(view, table.store),
        _manifests(view, len(manifests)),
        _other_engines(table),
        _conversion(seen),
        _publishing(seen),
    )
    return Diagnosis(table.name, signs)


class _Files:
    """Signs from the live files of a table."""

    def __init__(self, view: TableView, entries: Sequence[ManifestEntry]) -> None:
        self._view, self._entries = view, entries
        self._buckets: dict[BucketId, list[ManifestEntry]] = {}
        for entry in entries:
            self._buckets.setdefault((entry.partition, entry.bucket), []).append(entry)

    def sizes(self) -> Sign:
        """Too many files for the size of their content."""
        target = self._view.options.target_file_size_bytes
        surplus = sum(
            len(files) - max(1, -(-_bytes(files) // target)) for files in self._buckets.values()
        )
        average = _bytes(self._entries) // max(1, len(self._entries))
        limit = _SURPLUS_FILES * max(1, len(self._buckets))
        return self._sign(
            "small files",
            f"{counted(len(self._entries), 'file')} of {average:,} bytes on average, {surplus:,} "
            "more than necessary",
            f"at most {limit:,} more, {_SURPLUS_FILES} per bucket",
            self._compaction("compact(full=True)") if surplus > limit else None,
        )

    def runs(self) -> Sign:
        """Sorted runs, which a reader must merge."""
        options = self._view.options
        if not self._view.kind.keeps_versions:
            return self._sign(
                "sorted runs", "none, because reads merge nothing", "any number", None
            )
        # If versions stay separate, there are as many runs as a key has versions.
        stay_apart = self._view.engine.why_kept_apart is not None
        by_bucket = {
            bucket: sum(run.level == 0 or not stay_apart for run in sorted_runs(files))
            for bucket, files in self._buckets.items()
        }
        most = max(by_bucket, key=by_bucket.__getitem__, default=None)
        count = 0 if most is None else by_bucket[most]
        limit = options.compaction_trigger_runs
        where = "" if most is None else f" in {self._view.bucket_directory(*most)}"
        return self._sign(
            "sorted runs",
            f"up to {counted(count, 'run')}{where}",
            f"at most {limit} ('{keys.NUM_SORTED_RUN_COMPACTION_TRIGGER}')",
            self._compaction("compact()") if count > limit else None,
        )

    def skew(self) -> Sign:
        """Buckets of a partition that are much larger than the others."""
        worst, found = 1.0, "the buckets of each partition have similar sizes"
        for partition in {partition for partition, _ in self._buckets}:
            sizes = {b: _bytes(files) for b, files in self._buckets.items() if b[0] == partition}
            largest = max(sizes, key=sizes.__getitem__)
            # Buckets without files count too: a key that all rows share fills one of them.
            total = self._buckets[largest][0].total_buckets
            ratio = sizes[largest] * max(total, len(sizes)) / max(1, sum(sizes.values()))
            is_large = sizes[largest] > self._view.options.target_file_size_bytes
            if ratio > worst and is_large:
                worst = ratio
                found = (
                    f"{self._view.bucket_directory(*largest)} has {sizes[largest]:,} bytes, "
                    f"{ratio:.1f} times the average of its partition"
                )
        return self._sign(
            "skew",
            found,
            f"at most {_SKEW} times the average, for buckets larger than one file",
            f"Create a table with a '{keys.BUCKET_KEY}' or a primary key that distributes the "
            "rows evenly, and write these rows to it"
            if worst > _SKEW
            else None,
        )

    def tombstones(self) -> Sign:
        """Retracting rows, which are stored but not shown."""
        rows = sum(entry.file.row_count for entry in self._entries)
        held = sum(entry.file.delete_row_count or 0 for entry in self._entries)
        percent = 100 * held // max(1, rows)
        is_kept_forever = (
            self._view.kind.keeps_versions
            and self._view.needs_tombstones
            and self._view.options.tombstone_retention_ms is None
        )
        if is_kept_forever:
            action = (
                f"Set '{keys.TOMBSTONE_RETENTION}' to the maximum lateness of rows, and run a "
                "full compaction after that time"
            )
        else:
            action = self._compaction("compact(full=True)")
        return self._sign(
            "tombstones",
            f"{held:,} of {counted(rows, 'stored row')}, {percent} %",
            f"at most {_RETRACTS_PERCENT} %, or {_RETRACTS:,} rows",
            action if percent > _RETRACTS_PERCENT and held > _RETRACTS else None,
        )

    def _compaction(self, call: str) -> str:
        """What to do about files that should be merged."""
        reason = why_not_compacted(self._view)
        if reason is None:
            return f"Call {call}, or keytide compact {'--full' if 'full' in call else ''}".rstrip()
        return f"Overwrite partitions with their own rows; compaction does not help: {reason}"

    def _sign(self, subject: str, found: str, expected: str, action: str | None) -> Sign:
        return Sign(self._view.name, subject, found, expected, action)


def _consumers(table: StoredTable, view: TableView) -> Sign:
    """Consumers that keep snapshots that would expire without them."""
    limit = view.options.snapshots_expired_max
    metadata = table.metadata
    late: list[int] = []
    if not view.options.consumers_hold_changelogs_only:
        # What would expire by the table's options if no consumer kept any.
        ids = metadata.snapshot_ids()
        retention = Retention.of_snapshots(table.view(table.schema).options, wall_clock_ms())
        late = retention.expired(
            ids, max(ids, default=0), None, lambda number: metadata.snapshot(number).time_millis
        )
    held = {each.name: sum(number >= each.next_snapshot for number in late)
            for each in consumers_of(metadata)}  # fmt: skip
    slowest = max(held, key=held.__getitem__, default=None)
    count = 0 if slowest is None else held[slowest]
    return Sign(
        view.name,
        "consumers",
        f"{len(held):,}"
        + (f"; {slowest!r} keeps {counted(count, 'snapshot')} from expiring" if count else ""),
        f"at most {limit:,} snapshots kept per consumer",
        f"Continue its reader, or delete the consumer with reset_consumer({slowest!r}); "
        f"'{keys.CONSUMER_EXPIRATION_TIME}' deletes inactive consumers automatically"
        if count > limit
        else None,
    )


def _orphans(table: StoredTable, view: TableView) -> Sign:
    """Files that nothing references, and that are too old to be about to be committed."""
    expected, action = "none older than one day", None
    try:
        found = orphan_files(table, wall_clock_ms() - AGE_MIN_MS)
    except DataError as error:
        return Sign(
            view.name, "orphans", f"cannot be determined: {error}", expected,
            "Call verify(), or keytide verify, to list all damaged files",
        )  # fmt: skip
    size = sum(info.size for info in found)
    if found:
        action = "Call remove_orphan_files(dry_run=False), or keytide orphans --delete"
    return Sign(
        view.name, "orphans", f"{counted(len(found), 'file')} of {size:,} bytes", expected, action
    )


def _branches(view: TableView, store: Store) -> Sign:
    names, torn = branch_names(store), torn_branches(store)
    half = f", and remains of {', '.join(torn)}" if torn else ""
    return Sign(
        view.name,
        "branches",
        f"{len(names):,}, not counting the main branch{half}",
        "any number, but each keeps the files of its snapshots",
        f"delete_branch({torn[0]!r}), unless another process is creating it right now"
        if torn
        else None,
    )


def _manifests(view: TableView, count: int) -> Sign:
    limit = _MANIFESTS * view.options.manifest_merge_min_count
    return Sign(
        view.name,
        "manifests",
        f"{counted(count, 'manifest')} to read for planning",
        f"at most {limit:,}",
        f"CALL sys.compact_manifest, and reduce '{keys.MANIFEST_MERGE_MIN_COUNT}'"
        if count > limit
        else None,
    )


def _other_engines(table: StoredTable) -> Sign:
    """Snapshots, changelogs and tags that other engines of the format refuse."""
    subject, expected = "other engines", "all snapshots can be read by other engines"
    try:
        found = unreadable_documents(table)
    except DataError as error:
        return Sign(
            table.name, subject, f"cannot be determined: {error}", expected,
            "Call verify(), or keytide verify, to list all damaged files",
        )  # fmt: skip
    parts = (
        (found.snapshots, "snapshot"), (found.changelogs, "changelog"), (found.tags, "tag")
    )  # fmt: skip
    counts = ", ".join(counted(count, what) for count, what in parts if count)
    return Sign(
        table.name,
        subject,
        f"{counts} with an operation that other engines do not support"
        if counts
        else "all snapshots can be read",
        expected,
        "Call mend_snapshots(), or CALL sys.mend_snapshots" if counts else None,
    )


def _conversion(table: StoredTable) -> Sign:
    """A schema of another kind of table than that of the snapshot."""
    found = table.metadata.schemas_in_force()
    begun = f"a conversion to schema {found.newest.id} has started but not finished"
    return Sign(
        table.name,
        "conversion",
        "none is running" if found.is_settled else begun,
        "no interrupted conversion",
        None if found.is_settled else found.way_out,
    )


def _publishing(table: StoredTable) -> Sign:
    """Snapshots that readers of other formats do not see yet."""
    found = publications_of(table)
    late = [each for each in found if not each.is_current]
    return Sign(
        table.name,
        "publishing",
        "; ".join(map(_published, found)) or "nothing is published",
        "the latest snapshot, if the table is published",
        "; ".join(dict.fromkeys(map(_to_publish, late))) or None,
    )


def _published(found: Publication) -> str:
    """One format: what it shows and, if it is behind, why."""
    shown = "nothing" if found.snapshot_id is None else f"snapshot {found.snapshot_id}"
    if found.is_current:
        return f"{found.form} shows {shown}, the latest"
    return f"{found.form} shows {shown} of {found.newest_snapshot_id or 0}: {found.reason}"


def _to_publish(found: Publication) -> str:
    if found.is_stopped:
        return (
            f"Delete the folder of {found.form} if nobody reads it: the files that it lists are "
            "kept as long as it exists"
        )
    return "Call compact(full=True) if rows must still be merged, then publish()"


def _bytes(entries: Iterable[ManifestEntry]) -> int:
    return sum(entry.file.file_size for entry in entries)
