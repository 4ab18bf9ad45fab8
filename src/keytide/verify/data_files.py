"""Verification of files: data files against their entries in a manifest, and index files.

Of index files, these are checked: deletion vectors are of existing rows, and hash indexes have the
right number of hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.base.text import counted, held_by_python
from keytide.errors import DataError
from keytide.format import paths
from keytide.format.arrow import polars_schema, to_arrow
from keytide.format.bucket import bucket_ids
from keytide.format.checksum import check_every_block
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND, FileReader, physical_schema
from keytide.format.index_files import (
    DELETION_VECTORS,
    HASH,
    KEY_INDEX,
    IndexFile,
    decode_index_manifest,
    read_vectors,
)
from keytide.format.manifest_entry import DataFileMeta, ManifestEntry
from keytide.format.schema import KEY_PREFIX, SYSTEM_NAMES
from keytide.format.snapshot import CommitKind
from keytide.key_index.sorted_runs import Head
from keytide.read.runs import SYSTEM_COLUMNS
from keytide.read.sections import arity, decoded, is_out_of_order, key_ranks, value_bounds
from keytide.snapshot.bucket_key_index import LIVING_AGAIN, read_run, why_not_covered
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.types import arrow_schema
from keytide.verify.finding import REWRITE, Findings
from keytide.verify.rows import SnapshotFiles

# -- data files ------------------------------------------------------------------------------------


# About how many copies of the current part of a file are in memory: decoded, sorted and compared.
_COPIES = 6
_BATCH_ROWS_MIN = 8 << 10
_RETRACTS = (RowKind.UPDATE_BEFORE, RowKind.DELETE)


@dataclass(frozen=True)
class FileCheck:
    """Checks a data file. `view` is the table at the schema that the file was written with.

    A changelog file contains rows in the order of arrival, so neither its order nor its keys are
    checked.
    """

    view: TableView
    entry: ManifestEntry
    is_changelog: bool = False

    @property
    def path(self) -> str:
        """The path of the file: relative to the table, or a URI if it is outside."""
        return self.view.shown_path(self.entry)

    @cached_property
    def _place(self) -> tuple[Store, str]:
        """The store that contains the file, and its path there."""
        return self.view.data_file(self.entry)

    def presence(self, findings: Findings) -> bool:
        """Check whether the file and its extra files exist with their full length."""
        with findings.reading(self.path):
            store, path = self._place
            for name in self.entry.file.extra_files:
                beside = paths.join(path.rpartition("/")[0], name)
                with findings.reading(beside):
                    if not store.exists(beside):
                        findings.add(beside, "missing", f"a file that {self.path} needs")
            size = store.size(path)
            if size != self.entry.file.file_size:
                raise DataError(f"{size:,} bytes found, but {self.entry.file.file_size:,} recorded")
            return True
        return False

    def contents(self, memory_bytes: int) -> tuple[Findings, int]:
        """Read the file within about `memory_bytes`.

        Returns the findings, and the number of rows read.
        """
        findings = Findings(self.view.name)
        rows = 0
        if self.presence(findings):
            with findings.reading(self.path):
                columns = self._columns(findings)
                if not findings.found:
                    compared = _Rows(self, columns, findings)
                    for frame in self._frames(columns, memory_bytes):
                        compared.take(frame)
                    compared.finish()
                    rows = compared.count
        return findings, rows

    # -- bytes and columns ----------------------------------------------------------------------

    def _columns(self, findings: Findings) -> frozenset[str] | None:
        """The names of the stored columns, if the bytes of the file are intact.

        None for a format of which only the rows can be checked.
        """
        if not self.path.endswith(".parquet"):
            return None
        try:
            store, path = self._place
            if not check_every_block(store, path):
                # Decode all pages. If they have checksums, these are verified.
                with (
                    store.open_input(path) as source,
                    pq.ParquetFile(source, page_checksum_verification=True) as file,
                ):
                    for _ in file.iter_batches():
                        pass
            with store.open_input(path) as file:
                stored = pq.read_schema(file)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"damaged or not Parquet: {error}") from error
        expected = physical_schema(self.view.schema)
        for found in stored:
            # What is wrong with a stored column, for the readers of any engine.
            place, name, problem = expected.get_field_index(found.name), found.name, None
            if place >= 0:
                other = expected.field(place)
                ids = ((f.metadata or {}).get(b"PARQUET:field_id") for f in (found, other))
                own_id, schema_id = (None if each is None else int(each) for each in ids)
                scales = {f.type.scale for f in (found, other) if pa.types.is_decimal(f.type)}
                are_nested = {pa.types.is_nested(f.type) for f in (found, other)}
                if own_id is not None and own_id != schema_id:
                    problem = f"column {name!r} has the id {own_id}, but {schema_id} in its schema"
                elif len(scales) > 1 or len(are_nested) > 1:
                    problem = f"column {name!r} is {found.type}, but {other.type} in its schema"
            elif name not in SYSTEM_NAMES:  # some append tables have row numbers
                problem = f"column {name!r}, which is not in its schema"
            if problem is not None:
                expectation = f"the columns of schema {self.view.schema.id}"
                findings.add(self.path, problem, expectation, REWRITE)
        return frozenset(stored.names)

    # -- rows -----------------------------------------------------------------------------------

    def _frames(self, columns: frozenset[str] | None, memory_bytes: int) -> Iterator[pl.DataFrame]:
        schema = self.view.schema
        # The keys are stored twice: under their own names and under those for other readers.
        keys = [f for f in schema.key_fields() if columns is not None and f.name in columns]
        fields = (*schema.fields, *keys)
        reader = FileReader(
            *self._place,
            replace(schema, fields=fields),
            fields,
            SYSTEM_COLUMNS if schema.trimmed_primary_keys else (),
        )
        meta = self.entry.file
        row_bytes = max(64, 8 * meta.file_size // max(1, meta.row_count))
        spans = reader.spans(max(_BATCH_ROWS_MIN, memory_bytes // _COPIES // row_bytes))
        for span in spans:
            yield reader.read(*span)


class _Rows:
    """Reads the rows of a file and compares them with its entry."""

    def __init__(
        self, check: FileCheck, columns: frozenset[str] | None, findings: Findings
    ) -> None:
        self._check, self._columns, self._findings = check, columns, findings
        self._entry, self._schema = check.entry, check.view.schema
        self._meta: DataFileMeta = check.entry.file
        self._is_keyed = bool(self._schema.trimmed_primary_keys)
        self._in_order = not check.is_changelog and self._is_keyed
        if self._in_order:
            key = self._schema.trimmed_primary_key_fields()
            self._in_order = not is_out_of_order(self._entry, key)
        self._bounds = value_bounds([self._entry], self._schema.fields, check.view.schemas)

        # Bounds of the key columns. Without columns if the writer stored none.
        fields, stats = self._schema.trimmed_primary_key_fields(), self._meta.key_stats
        if not fields or arity(stats.min_values) != len(fields):
            self._key_bounds = pl.DataFrame()
        else:
            lows, highs = (decoded([row], fields) for row in (stats.min_values, stats.max_values))
            types = polars_schema(fields)
            self._key_bounds = pl.DataFrame(
                {
                    f"{name}.{end}": rows[name].cast(types[name])
                    for end, rows in (("min", lows), ("max", highs))
                    for name in types
                }
            )
        self._nulls = dict.fromkeys(self._schema.names, 0)
        self._numbers: list[int] = []
        self._first: pl.DataFrame | None = None
        self._last: pl.DataFrame | None = None
        self.count = self._retracts = 0

    def take(self, frame: pl.DataFrame) -> None:
        """Check the next rows."""
        if not frame.height:
            return
        self.count += frame.height
        nulls = frame.select(self._schema.names).null_count().row(0, named=True)
        self._nulls = {name: self._nulls[name] + nulls[name] for name in nulls}

        for f in self._schema.fields:
            if self._has(f.name):
                self._check_within(frame, f.name, self._bounds, "statistics say")
        for name in self._schema.trimmed_primary_keys if self._key_bounds.width else ():
            self._check_within(frame, name, self._key_bounds, "key statistics say")
        self._check_place(frame)
        rows = frame
        if self._is_keyed:
            rows = frame.filter(~pl.col(VALUE_KIND).is_in([int(kind) for kind in _RETRACTS]))
        for f in self._schema.fields:
            if not f.type.nullable and self._has(f.name) and rows[f.name].null_count():
                self._add_finding(f"column {f.name!r} has NULL", "values: the column is NOT NULL")
        if self._is_keyed:
            self._check_keys(frame)

    def finish(self) -> None:
        """Compare the totals of all rows."""
        meta = self._meta
        self._compare("rows", self.count, meta.row_count)

        bounds = held_by_python(self._bounds).row(0, named=True)
        for f in self._schema.fields:
            said = bounds[f"{f.name}.nulls"]
            # Some writers count no NULLs if they did not look at the values.
            is_known = said is not None and (said or bounds[f"{f.name}.min"] is not None)
            if is_known and self._has(f.name):
                self._compare(f"NULLs of column {f.name!r}", self._nulls[f.name], said)
        if not self._is_keyed or not self.count:
            return
        if not self._check.view.options.sequence_snapshot_ordering:
            self._compare("lowest sequence number", min(self._numbers), meta.min_sequence_number)
            self._compare("highest sequence number", max(self._numbers), meta.max_sequence_number)
        # On level 0, some writers do not record deletes, and readers know this. Above it, deletes
        # that a deletion vector marks as dead are not counted.
        is_marked = meta.level > 0 and self._check.view.options.deletion_vectors_enabled
        is_exact = (meta.level > 0 and not is_marked) or meta.delete_row_count
        if is_exact and meta.delete_row_count is not None and not self._check.is_changelog:
            self._compare("deletes and update-before rows", self._retracts, meta.delete_row_count)
        # The range of keys. Some writers record a wider one than the real one after a compaction.
        first, last = self._first, self._last
        if not self._in_order or first is None or last is None:
            return
        key = self._schema.trimmed_primary_key_fields()
        keys = decoded([meta.min_key, meta.max_key], key).cast(first.schema)
        low, high = keys.head(1), keys.tail(1)
        ranks = key_ranks(pl.concat([low, first, last, high]))
        if ranks != sorted(ranks):
            self._add_finding(
                f"keys from {_spelled(first)} to {_spelled(last)}",
                f"keys from {_spelled(low)} to {_spelled(high)}, as the manifest says",
            )

    def _add_finding(self, what: str, expected: str) -> None:
        self._findings.add(self._check.path, what, expected, REWRITE)

    def _compare(self, what: str, found: Any, recorded: Any) -> None:
        if found != recorded:
            self._add_finding(f"{what}: {found}", f"{recorded}, as the manifest says")

    # -- columns --------------------------------------------------------------------------------

    def _check_within(self, frame: pl.DataFrame, name: str, bounds: pl.DataFrame, who: str) -> None:
        low, high = (bounds[f"{name}.{end}"] for end in ("min", "max"))
        if low.null_count() or high.null_count():
            return
        column = pl.col(name)
        strange = frame.filter((column < pl.lit(low)) | (column > pl.lit(high)))
        if strange.height:
            self._add_finding(
                f"column {name!r} has {_first(strange[name])}",
                f"{_first(low)} to {_first(high)}, as {who}",
            )

    def _has(self, name: str) -> bool:
        return self._columns is None or name in self._columns

    # -- partition and bucket -------------------------------------------------------------------

    def _check_place(self, frame: pl.DataFrame) -> None:
        fields = [f for f in self._schema.partition_fields() if self._has(f.name)]
        values = decoded([self._entry.partition], self._schema.partition_fields())
        for f in fields:
            value = values[f.name].cast(frame.schema[f.name])
            strange = frame[f.name].ne_missing(value)
            if strange.any():
                self._add_finding(
                    f"a row of partition {f.name} = {_first(frame[f.name].filter(strange))}",
                    f"{_first(value)}, the partition that the file belongs to",
                )
        total, options = self._entry.total_buckets, self._check.view.options
        names = options.bucket_key or self._schema.trimmed_primary_keys
        if total < 2 or self._entry.bucket < 0 or not names or not all(map(self._has, names)):
            return
        key = self._schema.select(names)
        rows = to_arrow(frame, arrow_schema(key))
        buckets = bucket_ids(rows.columns, [f.type for f in key], total, options.bucket_function)
        others = buckets[buckets != self._entry.bucket]
        if len(others):
            self._add_finding(
                f"{counted(len(others), 'row')} of bucket {others[0]} and others",
                f"rows of bucket {self._entry.bucket} of {total}",
            )

    # -- keys -----------------------------------------------------------------------------------

    def _check_keys(self, frame: pl.DataFrame) -> None:
        numbers, kinds = frame[SEQUENCE_NUMBER], frame[VALUE_KIND]
        lowest, highest = numbers.min(), numbers.max()
        if numbers.null_count() or not isinstance(lowest, int) or not isinstance(highest, int):
            self._add_finding(f"{SEQUENCE_NUMBER} is NULL", "a number for each row")
        else:
            self._numbers += [lowest, highest]
            if not kinds.is_in([int(kind) for kind in RowKind]).all():
                expected = "+I, -U, +U or -D for each row"
                self._add_finding(f"{VALUE_KIND} is not a row kind", expected)
            self._retracts += int(kinds.is_in([int(kind) for kind in _RETRACTS]).sum())

        names = self._schema.trimmed_primary_keys
        for name in names:
            second = KEY_PREFIX + name
            if second in frame.columns and not frame[second].equals(
                frame[name].alias(second), null_equal=True
            ):
                self._add_finding(f"{second} differs from {name!r}", "the same key in both")
        keys = frame.select(names)
        self._first = keys.head(1) if self._first is None else self._first
        if self._in_order:
            held = keys if self._last is None else pl.concat([self._last, keys])
            same = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in names]
            is_repeated = pl.all_horizontal(*same) & (pl.int_range(pl.len()) > 0)
            # Sorting sorted rows is fast, and gives the order of readers for all types.
            if not held.equals(held.sort(names, nulls_last=False), null_equal=True):
                self._add_finding("rows out of key order", "rows sorted by key")
            elif held.select(is_repeated.any()).item():
                self._add_finding("a key in two rows", "one row for each key")
        self._last = keys.tail(1)


def _spelled(key: pl.DataFrame) -> str:
    values = held_by_python(key.head(1)).row(0, named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())


def _first(values: pl.Series) -> str:
    (value,) = held_by_python(values.head(1).to_frame()).row(0)
    return repr(value)


# -- index files -----------------------------------------------------------------------------------


_HASH_BYTES = 4


Place = tuple[bytes, int, str]
"""The partition, the bucket and the name of a data file."""


@dataclass(frozen=True)
class _Dead:
    """The deletion vectors of a snapshot.

    `rows` is how many rows of each data file are dead. None if that is not recorded.
    """

    seen: SnapshotFiles
    files: frozenset[str]
    rows: Mapping[Place, int | None]

    @classmethod
    def of(cls, seen: SnapshotFiles, listed: Iterable[IndexFile]) -> _Dead:
        vectors = [index for index in listed if index.index_type == DELETION_VECTORS]
        rows = {
            (index.partition, index.bucket, place.data_file_name): place.cardinality
            for index in vectors
            for place in index.ranges or ()
        }
        return cls(seen, frozenset(index.file_name for index in vectors), rows)


@dataclass
class Indexes:
    """Checks the index files of snapshots, each once for each description."""

    store: Store
    findings: Findings
    beside_data: bool = False
    """Whether there are index files in the folders of buckets, which this release does not
    check.
    """
    _checked: set[IndexFile] = field(default_factory=set)
    _before: _Dead | None = None
    _manifests: dict[str, list[IndexFile]] = field(default_factory=dict)

    def check(self, seen: SnapshotFiles) -> None:
        """Check the index files of a snapshot. The snapshots of a branch are checked in order."""
        listed = self.listed(seen.snapshot.index_manifest)
        self._check_still_dead(seen, listed)
        for index in listed:
            if index.index_type == DELETION_VECTORS:
                there = {
                    entry.file.file_name
                    for entry in seen.live.values()
                    if (entry.partition, entry.bucket) == (index.partition, index.bucket)
                }
                marked = [place.data_file_name for place in index.ranges or ()]
                for name in marked:
                    if name not in there:
                        self.findings.add(
                            paths.index_path(index.file_name),
                            f"rows of {name} are marked as deleted, but this is not a file of "
                            f"bucket {index.bucket} in {seen.path}",
                            "deletion vectors of live files of the same bucket",
                        )
            if index not in self._checked:
                self._checked.add(index)
                self._check_file(index, seen)

    def listed(self, name: str | None) -> list[IndexFile]:
        """The index files in an index manifest, as far as it can be read."""
        if name is None:
            return []
        if name not in self._manifests:
            path = paths.manifest_path(name)
            self._manifests[name] = []
            with self.findings.reading(path):
                self._manifests[name] = list(decode_index_manifest(self.store.read(path), path))
        return self._manifests[name]

    def _check_still_dead(self, seen: SnapshotFiles, listed: Iterable[IndexFile]) -> None:
        """Check that dead rows are still dead. Only a replacement of rows may change that."""
        before, now = self._before, _Dead.of(seen, listed)
        self._before = now
        kinds = (CommitKind.APPEND, CommitKind.COMPACT)
        if before is None or not seen.follows or seen.snapshot.commit_kind not in kinds:
            return
        self._check_taken_over(before, now)
        there = {
            (entry.partition, entry.bucket, entry.file.file_name) for entry in seen.live.values()
        }
        for place in sorted(there & before.rows.keys()):
            was, known = before.rows[place], now.rows.get(place, 0)
            if was is not None and known is not None and known < was:
                self.findings.add(
                    seen.path,
                    f"{counted(was - known, 'row')} of {place[2]} exist again that were deleted "
                    f"in snapshot {before.seen.snapshot.id}",
                    f"an index manifest that marks at least {was} as deleted",
                    "Restore the file from a backup, or read a newer snapshot",
                )

    def _check_taken_over(self, before: _Dead, now: _Dead) -> None:
        """Check that a snapshot took over no deletion vectors that the one before it lacks.

        A commit of this engine, which names its base, takes its own names from one uuid.
        """
        snapshot = now.seen.snapshot
        if snapshot.base is None:
            return
        own = paths.uuid_of(snapshot.delta_manifest_list)
        for name in sorted(now.files - before.files):
            if paths.uuid_of(name) != own:
                self.findings.add(
                    before.seen.path,
                    f"it lacks the deletion vectors of {name}, which snapshot {snapshot.id} took "
                    "over from it",
                    "an index manifest with these deletion vectors",
                    "Restore the file from a backup, or read a newer snapshot",
                )

    def _check_file(self, index: IndexFile, seen: SnapshotFiles) -> None:
        path = paths.index_path(index.file_name)
        if (
            self.beside_data
            or index.external_path is not None
            or index.index_type not in (DELETION_VECTORS, HASH, KEY_INDEX)
        ):
            self.findings.skip(path, f"an index of type {index.index_type} of another engine")
            return
        with self.findings.reading(path):
            data = self.store.read(path)
            if len(data) != index.file_size:
                raise DataError(f"{len(data):,} bytes found, but {index.file_size:,} recorded")
            if index.index_type == HASH:
                if index.file_size != _HASH_BYTES * index.row_count:
                    self.findings.add(
                        path,
                        f"{index.file_size:,} bytes",
                        f"{_HASH_BYTES} for each of {counted(index.row_count, 'hash value')}",
                    )
            elif index.index_type == KEY_INDEX:
                self._check_keys(Head.decode(data, self.store.uri_of(path)), index, seen)
            else:
                self._check_vectors(path, index, data, seen)

    def _check_keys(self, head: Head, index: IndexFile, seen: SnapshotFiles) -> None:
        """Check every byte of the index, and whether it matches the existing files."""
        for run in head.runs:
            read_run(self.store, run.name, run.size).check()
        rows = {
            entry.file.file_name: entry.file.row_count
            for entry in seen.live.values()
            if (entry.partition, entry.bucket) == (index.partition, index.bucket)
        }
        reason = why_not_covered(head, rows, {})
        if reason is not None and reason != LIVING_AGAIN:
            self.findings.skip(
                paths.index_path(index.file_name),
                f"a key index that the next write rebuilds: {reason}",
            )

    def _check_vectors(self, path: str, index: IndexFile, data: bytes, seen: SnapshotFiles) -> None:
        ranges = index.ranges or ()
        if index.row_count != len(ranges):
            self.findings.add(
                path, f"{counted(len(ranges), 'vector')} recorded", f"{index.row_count}"
            )
        rows = {entry.file.file_name: entry.file.row_count for entry in seen.live.values()}
        for place in ranges:
            vector = read_vectors(data, [place], path)[place.data_file_name]
            if place.cardinality is not None and place.cardinality != len(vector):
                self.findings.add(
                    path,
                    f"{counted(len(vector), 'row')} of {place.data_file_name} marked as deleted",
                    f"{place.cardinality}, as the index manifest says",
                )
            count = rows.get(place.data_file_name)
            if count is not None and vector and int(vector.max()) >= count:
                self.findings.add(
                    path,
                    f"row {int(vector.max())} of {place.data_file_name} is marked as deleted",
                    f"rows below {count}, the number of rows in the file",
                )
