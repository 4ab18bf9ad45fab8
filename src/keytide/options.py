"""Table options: every key Keytide knows, parsed once into a frozen value.

`TableOptions.parse` is the edge: behind it nobody reads a string. Keys are those of Apache
Paimon plus the watermark and tombstone keys; each field's comment says what it costs and who
should touch it. Options that only other engines act on (compaction triggers and the like) are
accepted and kept in the schema, because the same table is theirs as well.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from keytide.errors import InvalidError

__all__ = ["TableOptions", "parse_memory_size"]

T = TypeVar("T")

_MEMORY_UNITS = {
    "": 1, "b": 1, "bytes": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}  # fmt: skip
_DURATION_UNITS_MS = {
    "": 1, "ms": 1, "milli": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000,
    "min": 60_000, "m": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip


def parse_memory_size(text: str) -> int:
    """Bytes of a size such as `128 mb`, `1g` or `4096` (units are powers of 1024)."""
    return _quantity(text, _MEMORY_UNITS, "a size such as '128 mb'")


def _duration_ms(text: str) -> int:
    return _quantity(text, _DURATION_UNITS_MS, "a duration such as '10 s'")


def _quantity(text: str, units: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match.group(2) not in units:
        raise ValueError(expected)
    return int(match.group(1)) * units[match.group(2)]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("'true' or 'false'")
    return text.lower() == "true"


def _integer(low: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        expected = "a whole number" if low is None else f"a whole number of at least {low}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(expected) from None
        if low is not None and value < low:
            raise ValueError(expected)
        return value

    return parse


def _bucket(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("a whole number of buckets") from None
    if value == 0 or value < -2:
        raise ValueError("The number of buckets needs to be greater than 0.")
    return value


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text.lower()

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _untrimmed_names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))  # the format does not trim these names


def _stats_mode(text: str) -> str:
    mode = text.lower().replace(" ", "")
    if mode in ("none", "counts", "full") or re.fullmatch(r"truncate\([1-9]\d*\)", mode):
        return mode
    raise ValueError("none, counts, full or truncate(n)")


_PADDINGS = ("row-kind-flag", "second-to-micro", "millis-to-micro")


def _paddings(text: str) -> tuple[str, ...]:
    names = _names(text.lower())
    if any(name not in _PADDINGS for name in names):
        raise ValueError("a comma list of " + ", ".join(_PADDINGS))
    return names


def _option(key: str, parse: Callable[[str], Any], default: Any, *aliases: str) -> Any:
    return field(default=default, metadata={"keys": (key, *aliases), "parse": parse})


@dataclass(frozen=True)
class TableOptions:
    """The options of one table, typed and defaulted.

    `raw` keeps the text of every option as stored. Fields are named after their keys.
    """

    # -- layout: fixed when the table is made -------------------------------------------------
    bucket: int = _option("bucket", _bucket, -1)
    """Buckets per partition. More buckets mean more parallel merging and more, smaller files;
    200 MB to 1 GB of data per bucket is a good size."""
    bucket_key: tuple[str, ...] = _option("bucket-key", _untrimmed_names, ())
    bucket_function: str = _option(
        "bucket-function.type", _choice("default", "mod", "hive"), "default"
    )
    partition_default_name: str = _option("partition.default-name", str, "__DEFAULT_PARTITION__")
    partition_legacy_name: bool = _option("partition.legacy-name", _boolean, True)
    data_file_prefix: str = _option("data-file.prefix", str, "data-")
    path_directory: str | None = _option("data-file.path-directory", str, None)

    # -- what one key's versions become -------------------------------------------------------
    merge_engine: str = _option(
        "merge-engine",
        _choice("deduplicate", "partial-update", "aggregation", "first-row"),
        "deduplicate",
    )
    sequence_field: tuple[str, ...] = _option("sequence.field", _names, ())
    """Columns that order the versions of a key; NULL is lowest. Without it arrival decides."""
    sequence_sort_order: str = _option(
        "sequence.field.sort-order", _choice("ascending", "descending"), "ascending"
    )
    sequence_auto_padding: tuple[str, ...] = _option("sequence.auto-padding", _paddings, ())
    sequence_snapshot_ordering: bool = _option("sequence.snapshot-ordering", _boolean, False)
    rowkind_field: str | None = _option("rowkind.field", str, None)
    ignore_delete: bool = _option(
        "ignore-delete", _boolean, False,
        "first-row.ignore-delete", "deduplicate.ignore-delete", "partial-update.ignore-delete",
    )  # fmt: skip
    ignore_update_before: bool = _option("ignore-update-before", _boolean, False)
    watermark_key: tuple[str, ...] = _option("watermark.key", _names, ())
    """Columns that say how fresh a row is, compared in this order; stored as the sequence
    field too, so that every engine orders alike."""
    tombstone_key: tuple[str, ...] = _option("tombstone.key", _names, ())
    """The one column that marks a row as a deletion; needs a watermark key."""
    tombstone_string_key_value: str | None = _option("tombstone.string-key-value", str, None)
    primary_key_nullable: bool = _option("primary-key.nullable", _boolean, False)
    remove_record_on_delete: bool = _option(
        "partial-update.remove-record-on-delete", _boolean, False
    )
    remove_record_on_sequence_group: tuple[str, ...] = _option(
        "partial-update.remove-record-on-sequence-group", _names, ()
    )
    aggregation_remove_record_on_delete: bool = _option(
        "aggregation.remove-record-on-delete", _boolean, False
    )
    default_aggregate_function: str | None = _option("fields.default-aggregate-function", str, None)

    # -- changes and history ------------------------------------------------------------------
    changelog_producer: str = _option(
        "changelog-producer", _choice("none", "input", "lookup", "full-compaction"), "none"
    )
    full_compaction_delta_commits: int | None = _option(
        "full-compaction.delta-commits", _integer(1), None
    )
    streaming_read_overwrite: bool = _option("streaming-read-overwrite", _boolean, False)
    deletion_vectors_enabled: bool = _option("deletion-vectors.enabled", _boolean, False)
    force_lookup: bool = _option("force-lookup", _boolean, False)
    write_only: bool = _option("write-only", _boolean, False)
    record_level_expire_time: str | None = _option("record-level.expire-time", str, None)
    record_level_time_field: str | None = _option("record-level.time-field", str, None)

    # -- files ----------------------------------------------------------------------------------
    file_format: str = _option("file.format", _choice("parquet", "orc", "avro"), "parquet")
    file_compression: str | None = _option(
        "file.compression", _choice("zstd", "snappy", "gzip", "lz4", "none"), None
    )
    """Left out, files are `zstd`, and small ones at level 0 `lz4`: a frequent upsert is written
    faster, and is written again by the next compaction anyway."""
    file_compression_zstd_level: int = _option("file.compression.zstd-level", _integer(1), 1)
    target_file_size_bytes: int = _option("target-file-size", parse_memory_size, 128 << 20)
    """A run is cut into files of about this size. Smaller files prune better and list longer."""
    thin_mode: bool = _option("data-file.thin-mode", _boolean, False)
    """Leave the `_KEY_` columns out. Smaller, but Paimon releases before 1.0 cannot read it."""
    stats_mode: str = _option("metadata.stats-mode", _stats_mode, "truncate(16)")

    dynamic_partition_overwrite: bool = _option("dynamic-partition-overwrite", _boolean, True)
    """Whether an overwrite without a partition replaces only the partitions that its rows touch.
    Set to false, it replaces the whole table."""

    counts_out_of_order: bool = _option("write.count-out-of-order", _boolean, False)
    """Whether a write counts the rows that are older than what had arrived before them, which
    costs a lookup of their keys."""

    # -- commits --------------------------------------------------------------------------------
    commit_retries_max: int = _option("commit.max-retries", _integer(0), 100)
    """Races for the same snapshot id that one commit may lose. An append never has to be
    redone, only rebased, so a high figure costs nothing but patience."""
    commit_retry_wait_ms_min: int = _option("commit.min-retry-wait", _duration_ms, 2)
    commit_retry_wait_ms_max: int = _option("commit.max-retry-wait", _duration_ms, 500)
    manifest_merge_min_count: int = _option("manifest.merge-min-count", _integer(2), 30)

    # -- memory ---------------------------------------------------------------------------------
    read_memory_bytes: int = _option("read.memory", parse_memory_size, 1 << 30)
    """What a merging read may hold at a time, over all its threads. More is a little faster."""
    write_buffer_bytes: int = _option("write-buffer-size", parse_memory_size, 256 << 20)
    """Rows that a distributed write gathers into one sorted run. Fewer and larger runs are merged
    faster; a task needs about four times as much memory."""

    raw: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> TableOptions:
        """Parse the stored options of a table; keys that Keytide does not know are kept in `raw`.

        Raises `InvalidError` naming option, value and what was expected.
        """
        values: dict[str, Any] = {}
        for spec in fields(cls):
            for key in spec.metadata.get("keys", ()):
                if key in raw:
                    values[spec.name] = _parse_one(key, raw[key], spec.metadata["parse"])
        return cls(**values, raw=dict(raw))

    @property
    def compacts_by_lookup(self) -> bool:
        """Whether a compaction folds into each value what the levels above it hold for the key.

        Values stay on those levels and must not be counted again (Paimon behaviour 3.2).
        """
        return (
            self.changelog_producer == "lookup"
            or self.force_lookup
            or self.deletion_vectors_enabled
            or self.merge_engine == "first-row"
        )

    def field_options(self, suffix: str) -> dict[str, str]:
        """Options of the form `fields.<names>.<suffix>`, by `<names>`."""
        pattern = re.compile(rf"fields\.(.+)\.{re.escape(suffix)}")
        matches = ((pattern.fullmatch(key), value) for key, value in self.raw.items())
        return {match.group(1): value for match, value in matches if match}


def refuse_unknown(raw: Mapping[str, str], table: str) -> None:
    """Raise `InvalidError` for an option that neither Keytide nor Paimon knows.

    Called when a user sets options; options of existing tables are never refused.
    """
    known = KNOWN_KEYS
    for key, value in raw.items():
        if not isinstance(value, str):
            raise InvalidError(
                f"table {table}: option {key!r} has the value {value!r} of type "
                f"{type(value).__name__}; option values are text, for example {str(value)!r}"
            )
        if key in known or _FIELD_OPTION.fullmatch(key):
            continue
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InvalidError(f"table {table}: unknown option {key!r}{hint}")


def _parse_one(key: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidError(f"option {key!r} has the value {text!r}; expected {error}") from None


_FIELD_SUFFIXES = (
    "aggregate-function", "ignore-retract", "sequence-group", "default-value", "stats-mode",
    "count-values", "list-agg-delimiter", "distinct", "nested-key", "nested-sequence-field",
    "nested-key-null-strategy", "count-limit", "ts-field", "merge-map-with-keytime.ts-field",
)  # fmt: skip
_FIELD_OPTION = re.compile(r"fields\..+\.(?:" + "|".join(map(re.escape, _FIELD_SUFFIXES)) + ")")

# Known to Paimon and kept for the engines that act on them.
_KEPT_FOR_OTHERS = (
    "aggregation.remove-record-on-delete", "async-file-write", "auto-create",
    "branch", "bucket-append-ordered", "cache-page-size",
    "changelog-file.compression", "changelog-file.format", "changelog-file.prefix",
    "changelog-file.stats-mode", "changelog-producer.compaction-interval",
    "changelog-producer.row-deduplicate", "changelog-producer.row-deduplicate-ignore-fields",
    "changelog.num-retained.max", "changelog.num-retained.min", "changelog.time-retained",
    "clustering.columns", "commit.force-compact", "commit.force-create-snapshot",
    "commit.timeout", "commit.user-prefix", "compaction.force-rewrite-all-files",
    "compaction.force-up-level-0", "compaction.incremental-size-threshold",
    "compaction.max-size-amplification-percent", "compaction.optimization-interval",
    "compaction.size-ratio", "compaction.total-size-threshold", "consumer-id",
    "consumer.expiration-time", "consumer.ignore-progress", "consumer.mode",
    "cross-partition-upsert.bootstrap-parallelism", "cross-partition-upsert.index-ttl",
    "data-file.external-paths", "data-file.external-paths.strategy",
    "delete.force-produce-changelog", "deletion-vector.index-file.target-size",
    "deletion-vectors.bitmap64", "deletion-vectors.merge-on-read",
    "deletion-vectors.modifiable", "dynamic-bucket.assigner-parallelism",
    "dynamic-bucket.initial-buckets", "dynamic-bucket.max-buckets",
    "dynamic-bucket.target-row-num",
    "fields.default-aggregate-function", "file-index.in-manifest-threshold",
    "file-index.read.enabled", "file-reader-async-threshold", "file.block-size",
    "file.compression.per.level", "file.format.per.level", "file.suffix.include.compression",
    "index-file-in-data-file-dir", "incremental-between",
    "incremental-between-scan-mode", "incremental-between-timestamp", "local-merge-buffer-size",
    "local-sort.max-num-file-handles", "lookup-compact", "lookup-compact.max-interval",
    "lookup-wait", "lookup.cache-file-retention", "lookup.cache-max-disk-size",
    "lookup.cache-max-memory-size", "manifest.compression", "manifest.format",
    "manifest.full-compaction-threshold-size", "manifest.target-file-size",
    "merge-engine", "metadata.iceberg.storage", "metadata.stats-dense-store",
    "metadata.stats-keep-first-n-columns", "metadata.stats-mode.per.level",
    "metastore.partitioned-table", "metastore.tag-to-partition", "num-levels",
    "num-sorted-run.compaction-trigger", "num-sorted-run.stop-trigger", "page-size",
    "parquet.enable.dictionary", "partition", "partition.end-input-to-done",
    "partition.expiration-check-interval", "partition.expiration-max-num",
    "partition.expiration-strategy", "partition.expiration-time",
    "partition.idle-time-to-report-statistic", "partition.mark-done-action",
    "partition.timestamp-formatter", "partition.timestamp-pattern", "pk-clustering-override",
    "postpone.batch-write-fixed-bucket", "postpone.default-bucket-num", "primary-key",
    "read.batch-size", "scan.fallback-branch", "scan.manifest.parallelism",
    "scan.max-splits-per-task", "scan.mode", "scan.plan-sort-partition", "scan.snapshot-id",
    "scan.tag-name", "scan.timestamp", "scan.timestamp-millis", "scan.version",
    "scan.watermark", "sink.key-only-deletes.enabled", "snapshot.clean-empty-directories",
    "snapshot.expire.execution-mode", "snapshot.expire.limit", "snapshot.ignore-empty-commit",
    "snapshot.num-retained.max", "snapshot.num-retained.min", "snapshot.time-retained",
    "snapshot.watermark-idle-timeout", "sort-compaction.local-sample.magnification",
    "sort-compaction.range-strategy", "sort-engine", "sort-spill-buffer-size",
    "sort-spill-threshold", "source.split.open-file-cost", "source.split.target-size",
    "spill-compression", "streaming-read-mode", "tag.automatic-completion",
    "tag.automatic-creation", "tag.batch.customized-name", "tag.callback.#.param",
    "tag.callbacks", "tag.create-success-file", "tag.creation-delay", "tag.creation-period",
    "tag.creation-period-duration", "tag.default-time-retained", "tag.num-retained-max",
    "tag.period-formatter", "tag.time-expire-enabled", "type", "write-buffer-for-append",
    "write-buffer-size", "write-buffer-spill.max-disk-size", "write-buffer-spillable",
    "write-manifest-cache", "write-max-writers-to-spill",
    "write.sequence-number-init-mode", "zorder.var-length-contribution",
)  # fmt: skip

KNOWN_KEYS = frozenset(_KEPT_FOR_OTHERS) | {
    key for spec in fields(TableOptions) for key in spec.metadata.get("keys", ())
}
