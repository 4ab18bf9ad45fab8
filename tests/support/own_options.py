"""The options of tables that Java Paimon does not have."""

from __future__ import annotations

__all__ = ["ELSEWHERE"]

ELSEWHERE = frozenset(
    (
        "changelog-producer.compaction-interval", "compaction.background",
        "compaction.background.min-runs", "compaction.background.min-size", "external.format",
        "external.location", "external.schema-on-read", "file-index.bloom-filter.columns",
        "metadata.iceberg.storage", "primary-key.nullable", "publish",
        "publish.iceberg.format-version", "read.memory", "scan.skip-upsert",
        "scan.skip-upsert-delete", "sequence.auto-padding", "sink.key-only-deletes.enabled",
        "spark.driver-work.max-size", "streaming-read-mode", "tombstone.key",
        "tombstone.retention", "tombstone.string-key-value", "version.retention", "watermark.key",
        "write-manifest-cache", "write.count-out-of-order", "write.distribution",
    )
)  # fmt: skip
