"""The manifest entry of one data file, with the member names of the format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from keytide.format.stats import SimpleStats

__all__ = ["DataFileMeta", "FileKind", "FileSource", "Identity", "ManifestEntry", "file_name_of"]

Identity = tuple[bytes, int, int, str, tuple[str, ...], bytes | None, str | None]


class FileKind(IntEnum):
    """Whether an entry adds or deletes its file. The format calls this the kind of the entry.

    Persisted, so it must not change.
    """

    ADD = 0
    DELETE = 1


class FileSource(IntEnum):
    """What wrote a data file. Persisted, so it must not change."""

    APPEND = 0
    COMPACT = 1


@dataclass(frozen=True, slots=True)
class DataFileMeta:
    """One data file, with the member names of the format.

    - `file_size` is exact and in bytes.
    - `row_count` includes retractions. `delete_row_count` counts only those (None: unknown, merge
      to be safe).
    - `min_key` and `max_key` are the exact first and last key as binary rows of the trimmed primary
      key.
    - `value_stats_cols` names the columns of `value_stats`. None means all.
    - `creation_time` is the writer's local time, in epoch milliseconds as if it were UTC.
    - `embedded_file_index` and `extra_files` belong to the identity.
    """

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: SimpleStats
    value_stats: SimpleStats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time: int | None = None
    delete_row_count: int | None = None
    embedded_file_index: bytes | None = None
    file_source: int | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A data file that is added to or deleted from a bucket.

    `partition` is the binary row of the partition columns. `total_buckets` is the number of buckets
    of the partition when the file was written: -1 dynamic, -2 postponed.
    """

    kind: FileKind
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFileMeta

    @property
    def identity(self) -> Identity:
        """Two entries with the same identity are about the same file."""
        file = self.file
        return (
            self.partition,
            self.bucket,
            file.level,
            file.file_name,
            file.extra_files,
            file.embedded_file_index,
            file.external_path,
        )


def file_name_of(identity: Identity) -> str:
    """The file name in an identity."""
    return identity[3]
