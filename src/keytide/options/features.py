"""What options of Apache Paimon 2.0 ask of readers and writers.

Most of them say how other engines work, and change neither rows nor files. The others ask for a
`Feature`: something that a reader or a writer has to do to see or keep the rows of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from keytide.base.dataclass import dataclass


class Needs(IntEnum):
    """Who has to know a feature. Each includes those before it."""

    NOTICE = 1
    """Nobody, but a reader may expect other rows."""
    WRITERS = 2
    """Whoever writes rows."""
    CLEANERS = 3
    """Also whoever deletes files, because it explains some of them."""
    READERS = 4
    """Also whoever reads rows."""


@dataclass(frozen=True)
class Feature:
    """An option that asks for something. `why` says what, for messages.

    It asks for nothing with one of the values in `idle`.
    """

    key: str
    needs: Needs
    why: str
    idle: tuple[str, ...] = ("false",)

    def asks(self, text: str) -> bool:
        """Whether the option asks for something with this value."""
        return text.strip().lower() not in self.idle


def _named(why: str, *keys: str, idle: tuple[str, ...] = ("false",)) -> list[Feature]:
    return [Feature(key, Needs.NOTICE, why, idle) for key in keys]


_IN_BRANCHES = "its rows are those of two branches, and only scan, get and SELECT read both"


_CHAINED = "it takes rows from a chain of partitions in several branches"


_BLOBS = "it stores the contents of BLOB columns in files of their own"


_DESCRIPTORS = "it stores descriptors in place of the contents of BLOB columns"


_OWN_ROWS = "another engine reads the rows that it selects, and Keytide the latest"


_ROWS_ARE_SPLIT = "it splits a row over several files"


FEATURES: tuple[Feature, ...] = (
    # Which rows there are.
    Feature("scan.fallback-branch", Needs.READERS, _IN_BRANCHES, ("",)),
    Feature("scan.primary-branch", Needs.READERS, _IN_BRANCHES, ("",)),
    Feature("scan.fallback-snapshot-branch", Needs.READERS, _CHAINED, ()),
    Feature("scan.fallback-delta-branch", Needs.READERS, _CHAINED, ()),
    Feature("chain-table.enabled", Needs.READERS, _CHAINED),
    Feature("query-auth.enabled", Needs.READERS, "its catalog hides rows and columns from users"),
    Feature("postpone.merge-on-read", Needs.READERS, "it also shows rows without a bucket"),
    Feature("data-evolution.enabled", Needs.READERS, _ROWS_ARE_SPLIT),
    Feature("type", Needs.READERS, "its rows are not in files with snapshots",
            ("table", "materialized-table", "external-table")),
    Feature("upsert-key", Needs.WRITERS, "a written row has to replace the row with its key", ()),
    Feature("row-tracking.enabled", Needs.WRITERS, "every writer has to number the rows"),
    # How files are laid out.
    Feature("pk-clustering-override", Needs.READERS,
            "it sorts files by other columns than the key"),
    Feature("fields.<column>.map.storage-layout", Needs.READERS,
            "it stores the entries of a MAP in columns that they share", ("default",)),
    Feature("index-file-in-data-file-dir", Needs.CLEANERS, "it stores indexes next to the data"),
    Feature("global-index.external-path", Needs.CLEANERS, "it stores indexes outside the table",
            ()),
    Feature("pk-vector.index.columns", Needs.WRITERS, "every writer has to keep its index", ()),
    Feature("pk-full-text.index.columns", Needs.WRITERS, "every writer has to keep its index", ()),
    Feature("vector.file.format", Needs.READERS, "it stores VECTOR columns in files of their own",
            ()),
    Feature("vector.target-file-size", Needs.CLEANERS,
            "it stores VECTOR columns in files of their own", ()),
    Feature("data-evolution.row-sidecar.enabled", Needs.READERS, _ROWS_ARE_SPLIT),
    Feature("orc.timestamp-ltz.legacy.type", Needs.READERS,
            "its ORC files store TIMESTAMP_LTZ in another form", ("true",)),
    Feature("lookup.remote-file.enabled", Needs.CLEANERS, "it stores files for lookups"),
    # BLOB columns.
    Feature("blob-field", Needs.READERS, _BLOBS, ()),
    Feature("blob-descriptor-field", Needs.READERS, _DESCRIPTORS, ()),
    Feature("blob-view-field", Needs.READERS, _DESCRIPTORS, ()),
    Feature("blob.stored-descriptor-fields", Needs.READERS, _DESCRIPTORS, ()),
    Feature("blob-external-storage-field", Needs.READERS, _BLOBS, ()),
    Feature("blob-as-descriptor", Needs.READERS, _DESCRIPTORS),
    Feature("blob.target-file-size", Needs.CLEANERS, _BLOBS, ()),
    Feature("blob-compaction.enabled", Needs.CLEANERS, _BLOBS),
    # What reads elsewhere go by.
    *_named(
        _OWN_ROWS,
        "scan.snapshot-id", "scan.tag-name", "scan.version", "scan.timestamp",
        "scan.timestamp-millis", "scan.watermark", "scan.creation-time-millis",
        "scan.file-creation-time-millis", "incremental-between", "incremental-between-timestamp",
        "incremental-to-auto-tag", "scan.bucket", "scan.partitions",
        idle=(),
    ),
    *_named(_OWN_ROWS, "scan.mode", idle=("default", "latest-full", "full", "latest")),
    *_named("reads of other engines also show sequence numbers",
            "key-value.sequence_number.enabled"),
)  # fmt: skip


# Options that change how other engines work, but neither rows nor files. One line for each subject.
_HARMLESS = """
path auto-create deletion-vectors.modifiable postpone.batch-write-fixed-bucket
data-file.external-paths data-file.external-paths.strategy data-file.external-paths.specific-fs
data-file.external-paths.weights incremental-between-scan-mode incremental-between-tag-to-snapshot

chain-table.chain-partition-keys chain-table.streaming.merge-snapshot
chain-table.split.key-range-enabled scan.fallback-branch.read-fail-fast

variant.shreddingSchema parquet.variant.shreddingSchema variant.inferShreddingSchema
variant.shredding.inferenceMode variant.shredding.maxSchemaWidth variant.shredding.maxSchemaDepth
variant.shredding.minFieldCardinalityRatio variant.shredding.maxInferBufferRow
variant.shredding.adaptive.maxInferBufferRow variant.shredding.adaptive.retentionRatio
fields.<column>.map.shared-shredding.<setting> vector-field

blob.split-by-file-size blob.copy-buffer-size blob-view.resolve.enabled
blob-descriptor.source-table blob-descriptor.<setting> blob-write-null-on-missing-file
blob-write-null-on-fetch-failure lookup.blob-as-descriptor

manifest-sort.enabled manifest-sort.partition-field manifest-sort.max-rewrite-size
manifest.delete-file-drop-stats

pk-btree.index.columns pk-bitmap.index.columns fields.<column>.pk-<setting>
fields.<column>.<index>-index.<setting> btree-index.<setting> bitmap-index.<setting>
sorted-index.<setting> global-index.column-update-action global-index.row-count-per-shard
global-index.build.max-shard global-index.build.max-parallelism global-index.enabled
global-index.search-mode global-index.thread-num scalar-index.search-mode vector-index.search-mode
full-text-index.search-mode vector-search.distribute.enabled vector-search.lateral-join.batch-size

continuous.discovery-interval scan.bounded.watermark streaming.read.snapshot.delay
streaming-read-append-overwrite stream-scan-mode batch-scan-mode scan.ignore-corrupt-files
scan.ignore-lost-files scan.plan-auto-tag-for-read.time-retained table-read.sequence-number.enabled
scan.parallelism scan.infer-parallelism scan.infer-parallelism.max scan.watermark.<setting>
scan.split-enumerator.<setting> scan.max-snapshot.count scan.remove-normalize scan.bounded
scan.dedicated-split-generation log.scan log.scan.<setting> source.<setting> read.<setting>
streaming-read.<setting>

lookup.hash-load-factor lookup.cache-rows lookup.continuous.discovery-interval
lookup.cache-spill-compression lookup.cache.high-priority-pool-ratio
lookup.cache.bloom.filter.enabled lookup.cache.bloom.filter.fpp lookup.remote-file.level-threshold
lookup.merge-buffer-size lookup.merge-records-threshold lookup.async lookup.async-thread-number
lookup.bootstrap-parallelism lookup.cache lookup.dynamic-partition
lookup.dynamic-partition.<setting> lookup.refresh.<setting> local-kv-db.block-size

spill-compression.zstd-level target-file-row-num write.batch-size write.batch-memory
orc.write.batch-size overwrite-upgrade file-operation.thread-num delete-file.thread-num
changelog-producer.lookup-wait
write.compaction-skip write.<setting> sink.<setting> precommit-compact changelog.precommit-compact
changelog.precommit-compact.<setting> unaware-bucket.<setting> end-input.watermark

compaction.small-file-ratio compaction.min.file-num compaction.max.file-num
compaction.file-num-limit compaction.delete-ratio-threshold compaction.skip-expired-partitions
compaction.bucket-distribution-strategy clustering.strategy clustering.incremental
clustering.incremental.optimize-write clustering.incremental.mode
clustering.history-partition.limit clustering.history-partition.idle-to-full-sort
postpone.batch-write-fixed-bucket.max-parallelism postpone.target-row-num-per-bucket
postpone.target-size-per-bucket

row-tracking.partition-group-on-commit data-evolution.reassign.skip-contiguous-row-count
data-evolution.row-id-conflict-rewrite.max-size data-evolution.row-sidecar.max-selected-rows
data-evolution.row-sidecar.max-selection-ratio data-evolution.merge-into.file-pruning
data-evolution.merge-into.source-persist data-evolution.compaction.rewrite-row-ids

partition.expiration-batch-size partition.timestamp-format.strict partition.sink-strategy
partition.mark-done-action.<setting> partition.mark-done.<setting> partition.idle-time-to-done
partition.time-interval end-input.check-partition-expire metastore.tag-to-partition.preview
snapshot.expire.clean-empty-directories

commit.callbacks commit.callback.<setting> commit.custom-listeners commit.discard-duplicate-files
commit.strict-mode.last-safe-snapshot visibility-callback.enabled visibility-callback.timeout
visibility-callback.check-interval

alter-column-null-to-not-null.disabled disable-explicit-type-casting add-column-before-partition
materialized-table.<setting> format-table.<setting> metadata.iceberg.<setting>
filesystem.job-level-settings.enabled scan.skip-upsert scan.skip-upsert-delete

orc.<setting> parquet.<setting> avro.<setting> csv.<setting> json.<setting> text.<setting>
comment owner provider location connector external created-at
"""


_PLACES = {"column": r".+", "setting": r".+", "index": r"[^.]+"}


def _pattern(key: str) -> re.Pattern[str]:
    parts = re.split(r"<(\w+)>", key)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [_PLACES[place] for place in parts[1::2]]
    return re.compile("".join(parts), re.IGNORECASE)


VECTORS_ELSEWHERE = frozenset(("index-file-in-data-file-dir", "global-index.external-path"))
"""Options that also decide where deletion vectors are stored."""


HARMLESS: tuple[str, ...] = tuple(_HARMLESS.split())
"""The keys of options that ask for nothing. With a place such as `<setting>`, all such keys."""


_HARMLESS_KEYS = frozenset(key.lower() for key in HARMLESS if "<" not in key)


_HARMLESS_PATTERNS = tuple(_pattern(key) for key in HARMLESS if "<" in key)


_BY_KEY: Mapping[str, Feature] = {each.key: each for each in FEATURES if "<" not in each.key}


_BY_PATTERN = tuple((_pattern(each.key), each) for each in FEATURES if "<" in each.key)


def feature_of(key: str) -> Feature | None:
    """What an option with this key can ask for."""
    found = _BY_KEY.get(key.lower())
    if found is not None:
        return found
    return next((each for pattern, each in _BY_PATTERN if pattern.fullmatch(key)), None)


def is_harmless(key: str) -> bool:
    """Whether an option with this key asks for nothing, whatever its value."""
    if key.lower() in _HARMLESS_KEYS:
        return True
    return any(pattern.fullmatch(key) for pattern in _HARMLESS_PATTERNS)
