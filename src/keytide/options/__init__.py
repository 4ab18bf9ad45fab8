"""Table options: every key Keytide knows, parsed once into a frozen value.

Only `TableOptions.parse` reads strings. Each option is defined by a row of the table in
`keytide.options.option_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from keytide.base.dataclass import dataclass, field, fields
from keytide.options import keys
from keytide.options.keys import columns_in, option_of, stored_name, stored_names
from keytide.options.option_table import SECTIONS
from keytide.options.values import Acts, Age, Change, ForOthers, Option, Refused, parse_memory_size

__all__ = [
    "SECTIONS",
    "Acts",
    "Age",
    "Change",
    "ForOthers",
    "Option",
    "Refused",
    "TableOptions",
    "option_of",
    "parse_memory_size",
    "stored_name",
    "stored_names",
]


def _option(key: str) -> Any:
    option = option_of(key)
    assert option is not None
    return field(default=option.default_value, metadata={"option": option})


@dataclass(frozen=True)
class TableOptions:
    """The options of one table that Keytide uses, with types and defaults.

    `raw` has the stored string of every option, including those for other engines.
    """

    # -- layout: fixed when the table is made -------------------------------------------------
    bucket: int = _option("bucket")
    bucket_key: tuple[str, ...] = _option("bucket-key")
    bucket_function: str = _option("bucket-function.type")
    postpone_default_bucket_num: int = _option("postpone.default-bucket-num")
    dynamic_bucket_target_row_num: int = _option("dynamic-bucket.target-row-num")
    dynamic_bucket_initial_buckets: int | None = _option("dynamic-bucket.initial-buckets")
    dynamic_bucket_max_buckets: int = _option("dynamic-bucket.max-buckets")
    dynamic_bucket_assigner_parallelism: int | None = _option("dynamic-bucket.assigner-parallelism")
    partition_default_name: str = _option("partition.default-name")
    partition_legacy_name: bool = _option("partition.legacy-name")
    data_file_prefix: str = _option("data-file.prefix")
    path_directory: str | None = _option("data-file.path-directory")
    primary_key_nullable: bool = _option("primary-key.nullable")

    # -- what one key's versions become -------------------------------------------------------
    merge_engine: str = _option("merge-engine")
    sequence_field: tuple[str, ...] = _option("sequence.field")
    sequence_sort_order: str = _option("sequence.field.sort-order")
    sequence_auto_padding: tuple[str, ...] = _option("sequence.auto-padding")
    sequence_snapshot_ordering: bool = _option("sequence.snapshot-ordering")
    rowkind_field: str | None = _option("rowkind.field")
    ignore_delete: bool = _option("ignore-delete")
    ignore_update_before: bool = _option("ignore-update-before")
    watermark_key: tuple[str, ...] = _option("watermark.key")
    dml_watermark: str = _option("upsert.dml-watermark")
    on_tie: str | None = _option("upsert.on-tie")
    upsert_mode: str = _option("upsert.mode")
    upsert_hash_function: str = _option("upsert.hash-function")
    delete_record_column: str | None = _option("upsert.delete-record-column")
    row_errors: str = _option("upsert.row-errors")
    drops_out_of_order: bool = _option("upsert.drop-out-of-order-record")
    out_of_order_column: str | None = _option("upsert.out-of-order-record-column")
    late_rows: str = _option("upsert.late-rows")
    # `_option` gives a field, also of a type that is not built in.
    metadata_ttl: Age | None = _option("upsert.metadata-ttl")
    deleted_keys_ttl: Age | None = _option("upsert.deleted-keys-ttl")
    stale_percent_min: int | None = _option("upsert.compaction.invalid-records-threshold-percent")
    stale_count_min: int | None = _option("upsert.compaction.invalid-records-threshold-count")
    compaction_buffer_ms: int | None = _option("upsert.compaction.buffer-time-period")
    tombstone_key: tuple[str, ...] = _option("tombstone.key")
    tombstone_string_key_value: str | None = _option("tombstone.string-key-value")
    remove_record_on_delete: bool = _option("partial-update.remove-record-on-delete")
    remove_record_on_sequence_group: tuple[str, ...] = _option(
        "partial-update.remove-record-on-sequence-group"
    )
    aggregation_remove_record_on_delete: bool = _option("aggregation.remove-record-on-delete")
    default_aggregate_function: str | None = _option("fields.default-aggregate-function")

    # -- changes ------------------------------------------------------------------------------
    changelog_producer: str = _option("changelog-producer")
    row_deduplicate: bool = _option("changelog-producer.row-deduplicate")
    row_deduplicate_ignore_fields: tuple[str, ...] = _option(
        "changelog-producer.row-deduplicate-ignore-fields"
    )
    full_compaction_delta_commits: int | None = _option("full-compaction.delta-commits")
    changelog_file_prefix: str = _option("changelog-file.prefix")
    changelog_file_compression: str | None = _option("changelog-file.compression")
    changelog_file_format: str | None = _option("changelog-file.format")
    changelog_file_stats_mode: str | None = _option("changelog-file.stats-mode")
    deletion_vectors_enabled: bool = _option("deletion-vectors.enabled")
    deletion_vectors_bitmap64: bool = _option("deletion-vectors.bitmap64")
    deletion_vectors_merge_on_read: bool = _option("deletion-vectors.merge-on-read")
    lookup_compact: str = _option("lookup-compact")
    lookup_compact_interval: int | None = _option("lookup-compact.max-interval")
    lookup_wait: bool = _option("lookup-wait")
    force_lookup: bool = _option("force-lookup")

    # -- files --------------------------------------------------------------------------------
    file_format: str = _option("file.format")
    file_formats_by_level: tuple[tuple[int, str], ...] = _option("file.format.per.level")
    file_compression: str | None = _option("file.compression")
    file_compression_zstd_level: int = _option("file.compression.zstd-level")
    parquet_dictionaries: bool = _option("parquet.enable.dictionary")
    target_file_size_bytes: int = _option("target-file-size")
    thin_mode: bool = _option("data-file.thin-mode")
    stats_mode: str = _option("metadata.stats-mode")
    bloom_filter_columns: tuple[str, ...] = _option("file-index.bloom-filter.columns")
    index_in_manifest_bytes_max: int = _option("file-index.in-manifest-threshold")
    reads_file_indexes: bool = _option("file-index.read.enabled")
    dynamic_partition_overwrite: bool = _option("dynamic-partition-overwrite")
    counts_out_of_order: bool = _option("write.count-out-of-order")
    write_distribution: str = _option("write.distribution")

    # -- commits ------------------------------------------------------------------------------
    commit_retries_max: int = _option("commit.max-retries")
    commit_retry_wait_ms_min: int = _option("commit.min-retry-wait")
    commit_retry_wait_ms_max: int = _option("commit.max-retry-wait")
    manifest_merge_min_count: int = _option("manifest.merge-min-count")
    manifest_target_bytes: int = _option("manifest.target-file-size")
    manifest_full_merge_bytes: int = _option("manifest.full-compaction-threshold-size")

    # -- compaction ---------------------------------------------------------------------------
    write_only: bool = _option("write-only")
    compaction_trigger_runs: int = _option("num-sorted-run.compaction-trigger")
    given_background_compaction_runs: int | None = _option("compaction.background.min-runs")
    given_stop_trigger_runs: int | None = _option("num-sorted-run.stop-trigger")
    given_num_levels: int | None = _option("num-levels")
    size_amplification_percent: int = _option("compaction.max-size-amplification-percent")
    size_ratio_percent: int = _option("compaction.size-ratio")
    background_compaction: bool = _option("compaction.background")
    background_compaction_bytes_min: int = _option("compaction.background.min-size")
    optimization_interval_ms: int | None = _option("compaction.optimization-interval")
    total_size_threshold_bytes: int | None = _option("compaction.total-size-threshold")
    incremental_size_threshold_bytes: int | None = _option("compaction.incremental-size-threshold")
    tombstone_retention_ms: int | None = _option("tombstone.retention")
    version_retention_ms: int | None = _option("version.retention")

    # -- history ------------------------------------------------------------------------------
    branch: str = _option("branch")
    tag_automatic_creation: str = _option("tag.automatic-creation")
    tag_automatic_completion: bool = _option("tag.automatic-completion")
    tag_batch_name: str | None = _option("tag.batch.customized-name")
    tag_creation_delay_ms: int = _option("tag.creation-delay")
    tag_creation_period: str = _option("tag.creation-period")
    tag_creation_period_ms: int | None = _option("tag.creation-period-duration")
    tag_default_time_retained_ms: int | None = _option("tag.default-time-retained")
    tag_num_retained_max: int | None = _option("tag.num-retained-max")
    tag_period_formatter: str = _option("tag.period-formatter")
    tag_time_expire_enabled: bool = _option("tag.time-expire-enabled")
    snapshots_retained_max: int | None = _option("snapshot.num-retained.max")
    snapshots_retained_min: int = _option("snapshot.num-retained.min")
    snapshot_time_retained_ms: int = _option("snapshot.time-retained")
    snapshots_expired_max: int = _option("snapshot.expire.limit")
    snapshot_expiry_mode: str = _option("snapshot.expire.execution-mode")
    changelogs_retained_max: int | None = _option("changelog.num-retained.max")
    changelogs_retained_min: int | None = _option("changelog.num-retained.min")
    changelog_time_retained_ms: int | None = _option("changelog.time-retained")
    partition_lifetime_ms: int | None = _option("partition.expiration-time")
    partition_expiration_strategy: str = _option("partition.expiration-strategy")
    partition_expiration_interval_ms: int = _option("partition.expiration-check-interval")
    partitions_expired_max: int = _option("partition.expiration-max-num")
    partition_timestamp_pattern: str | None = _option("partition.timestamp-pattern")
    partition_timestamp_formatter: str | None = _option("partition.timestamp-formatter")
    consumer_lifetime_ms: int | None = _option("consumer.expiration-time")
    consumers_hold_changelogs_only: bool = _option("consumer.changelog-only")

    publish: tuple[str, ...] = _option("publish")
    publish_iceberg_format_version: int = _option("publish.iceberg.format-version")

    row_lifetime_ms: int | None = _option("record-level.expire-time")
    row_time_field: str | None = _option("record-level.time-field")

    # -- memory -------------------------------------------------------------------------------
    read_memory_bytes: int = _option("read.memory")
    lookup_cache_bytes_max: int = _option("lookup.cache-max-memory-size")
    lookup_files_bytes_max: int | None = _option("lookup.cache-max-disk-size")
    lookup_file_retention_ms: int = _option("lookup.cache-file-retention")
    write_buffer_bytes: int = _option("write-buffer-size")
    driver_work_bytes_max: int = _option("spark.driver-work.max-size")

    raw: Mapping[str, str] = field(default_factory=dict)

    @property
    def stop_trigger_runs(self) -> int:
        """The maximum number of sorted runs of a bucket after a write.

        Three above the trigger, or twelve times as many with background compaction.
        """
        given = self.given_stop_trigger_runs
        trigger = self.compaction_trigger_runs
        if given is None:
            return 12 * trigger if self.background_compaction else trigger + 3
        return max(given, trigger)

    @property
    def background_compaction_runs(self) -> int:
        """The number of sorted runs of a bucket that starts a background compaction."""
        trigger, given = self.compaction_trigger_runs, self.given_background_compaction_runs
        return max(trigger, min(given or 4 * trigger, self.stop_trigger_runs))

    @property
    def merges_on_read(self) -> bool:
        """Whether readers look at files of level 0: of deletion vectors only where asked to."""
        return not self.deletion_vectors_enabled or self.deletion_vectors_merge_on_read

    @property
    def merges_rows(self) -> bool:
        """Whether a written row is merged with the current row of its key."""
        return self.upsert_mode == "partial"

    @property
    def names_functions(self) -> bool:
        """Whether a function aggregates any column."""
        default = self.default_aggregate_function
        return default is not None or bool(self.by_columns(keys.AGGREGATE_FUNCTION))

    @property
    def counts_row_errors(self) -> bool:
        """Whether invalid rows are skipped and counted."""
        return self.row_errors == "count"

    @property
    def leaves_out_late_rows(self) -> bool:
        """Whether rows that come late are to be left out, dropped or marked."""
        is_marked = self.out_of_order_column is not None
        return self.drops_out_of_order or is_marked or self.late_rows == "leave-out"

    @property
    def tells_out_of_order(self) -> bool:
        """Whether a write reports the number of late rows."""
        has_ttl = self.metadata_ttl is not None or self.deleted_keys_ttl is not None
        return self.counts_out_of_order or self.leaves_out_late_rows or has_ttl

    @property
    def compactions_tell(self) -> bool:
        """Whether compactions create the changelog."""
        return self.changelog_producer in ("lookup", "full-compaction")

    @property
    def full_compaction_commits(self) -> int | None:
        """The commits from one full compaction to the next, which follows the last of them.

        None where full compactions do not go by commits.
        """
        tells = self.changelog_producer == "full-compaction"
        return self.full_compaction_delta_commits or (1 if tells else None)

    @property
    def lookup_runs_max(self) -> int:
        """The runs of level 0 with which a compaction by lookup waits at most."""
        if self.lookup_compact == "radical":
            return 1
        return self.lookup_compact_interval or 2 * self.compaction_trigger_runs

    @property
    def num_levels(self) -> int:
        """The levels of a bucket. By default one more than the runs that start a compaction."""
        return self.given_num_levels or self.compaction_trigger_runs + 1

    @property
    def least_changelogs(self) -> int:
        """The fewest changelogs kept, those of snapshots included; as many as snapshots."""
        return self.changelogs_retained_min or self.snapshots_retained_min

    @property
    def most_changelogs(self) -> int | None:
        """The most changelogs kept, likewise; None for no limit."""
        return self.changelogs_retained_max or self.snapshots_retained_max

    @property
    def changelog_lifetime_ms(self) -> int:
        """How long changelogs are kept. By default as long as snapshots."""
        given = self.changelog_time_retained_ms
        return self.snapshot_time_retained_ms if given is None else given

    @property
    def changelogs_outlive_snapshots(self) -> bool:
        """Whether an expired snapshot leaves its changelog."""
        most, most_snapshots = self.most_changelogs, self.snapshots_retained_max
        is_more = most_snapshots is not None and (most is None or most > most_snapshots)
        is_longer = self.changelog_lifetime_ms > self.snapshot_time_retained_ms
        return is_more or is_longer or self.least_changelogs > self.snapshots_retained_min

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> TableOptions:
        """Parse the stored options of a table. All other options are only in `raw`.

        Raises `InvalidError`, which names the option, the value and the expected value.
        """
        values = {
            name: option.parse(key, raw[key]) for key, name, option in _stored_keys() if key in raw
        }
        return cls(**values, raw=dict(raw))

    def value(self, key: str) -> Any:
        """The typed value of any option, or its default if it is not set.

        For options that few ask for. Raises `InvalidError` as `parse` does.
        """
        option = option_of(key)
        assert option is not None, key
        return option.parse(key, self.raw[key]) if key in self.raw else option.default_value

    @property
    def constraint_texts(self) -> dict[str, str]:
        """The stored conditions of CHECK constraints, by their names."""
        return self.by_columns(keys.CONSTRAINT)

    @property
    def generation_texts(self) -> dict[str, str]:
        """The stored expressions of generated columns, by column."""
        return self.by_columns(keys.GENERATED)

    @property
    def counted_columns(self) -> frozenset[str]:
        """The columns whose written values are counted."""
        chosen = self.by_columns(keys.COUNT_VALUES)
        return frozenset(column for column, value in chosen.items() if value.lower() == "true")

    def by_columns(self, key: str) -> dict[str, str]:
        """The options that match `key`, such as `fields.<column>.distinct`, by columns."""
        found = ((columns_in(key, given), value) for given, value in self.raw.items())
        return {columns: value for columns, value in found if columns is not None}


@cache
def _stored_keys() -> tuple[tuple[str, str, Option], ...]:
    """Each key that is stored, with the attribute that has its value, and its option."""
    found: list[tuple[str, str, Option]] = []
    for spec in fields(TableOptions):
        option: Option | None = spec.metadata.get("option")
        names = (option.key, *option.aliases) if option is not None else ()
        found += ((key, spec.name, option) for key in names if option is not None)
    return tuple(found)
