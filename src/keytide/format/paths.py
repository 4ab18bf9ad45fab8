"""Every file name of a table: made here and parsed here, nowhere else.

A table's directory::

    schema/schema-<id>                      snapshot/snapshot-<id>    snapshot/LATEST, EARLIEST
    changelog/changelog-<id>                changelog/LATEST, EARLIEST
    manifest/manifest-<uuid>-<n>            manifest/manifest-list-<uuid>-<n>
    manifest/index-manifest-<uuid>-<n>      index/index-<uuid>-<n>
    statistics/stat-<uuid>-<n>              tag/tag-<name>            consumer/consumer-<id>
    branch/branch-<name>/{schema,snapshot,tag,changelog,consumer}/...
    [<partition>/]bucket-<b>/data-<uuid>-<n>.<format>

Paths are relative to the table and use ``/``. Schemas, snapshots, long-lived changelogs, tags
and consumers are found by name and belong to a branch; everything else is found by the name
that metadata records, and its ``<uuid>`` and ``<n>`` only keep it unique.

Functions named ``parse_*`` answer ``None`` for a name that is not of their kind, because a
directory also holds hints, temporaries and other writers' files. What they accept, the function
that makes the name gives back unchanged.

>>> snapshot_path(7)
'snapshot/snapshot-7'
>>> parse_snapshot_name("snapshot-7"), parse_snapshot_name("LATEST")
(7, None)
"""

from __future__ import annotations

import itertools
import re
import uuid as uuids
from dataclasses import dataclass
from enum import Enum

from keytide.arguments import shown
from keytide.errors import DataError, InvalidError

__all__ = [
    "BRANCH_DIR",
    "CHANGELOG_FILE_PREFIX",
    "DATA_FILE_PREFIX",
    "INDEX_DIR",
    "MAIN_BRANCH",
    "MANIFEST_DIR",
    "POSTPONE_BUCKET",
    "STATISTICS_DIR",
    "CompactedChangelogName",
    "DataFileName",
    "FileNames",
    "Hint",
    "MetadataFileName",
    "MetadataKind",
    "PostponeFileName",
    "branch_dir",
    "bucket_dir",
    "bucket_name",
    "changelog_dir",
    "changelog_hint_path",
    "changelog_path",
    "consumer_dir",
    "consumer_path",
    "data_file_format",
    "data_file_name",
    "decode_hint",
    "encode_hint",
    "index_path",
    "is_temporary",
    "join",
    "manifest_path",
    "metadata_file_name",
    "new_uuid",
    "parse_branch_name",
    "parse_bucket_name",
    "parse_changelog_name",
    "parse_compacted_changelog_name",
    "parse_consumer_name",
    "parse_data_file_name",
    "parse_metadata_file_name",
    "parse_postpone_file_name",
    "parse_schema_name",
    "parse_snapshot_name",
    "parse_tag_name",
    "postpone_file_name",
    "schema_dir",
    "schema_path",
    "snapshot_dir",
    "snapshot_hint_path",
    "snapshot_path",
    "statistics_path",
    "tag_dir",
    "tag_path",
]

MAIN_BRANCH = "main"
POSTPONE_BUCKET = -2

DATA_FILE_PREFIX = "data-"
CHANGELOG_FILE_PREFIX = "changelog-"

MANIFEST_DIR = "manifest"
INDEX_DIR = "index"
STATISTICS_DIR = "statistics"
BRANCH_DIR = "branch"


class Hint(str, Enum):
    """The two hint files beside snapshots and beside long-lived changelogs. Persisted names."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


class MetadataKind(str, Enum):
    """Kinds of generated metadata files; the value is the persisted prefix of the name."""

    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest-list"
    INDEX_MANIFEST = "index-manifest"
    INDEX = "index"
    STATISTICS = "stat"


@dataclass(frozen=True, slots=True)
class MetadataFileName:
    """A parsed generated name. ``number`` is None for writers that do not count."""

    kind: MetadataKind
    uuid: str
    number: int | None


@dataclass(frozen=True, slots=True)
class DataFileName:
    """A parsed data or changelog file name; ``prefix`` ends in the separator it was given with."""

    prefix: str
    uuid: str
    number: int
    extension: str


@dataclass(frozen=True, slots=True)
class PostponeFileName:
    """A parsed name of a file in the postpone bucket."""

    commit_user: str
    writer_id: int
    uuid: str
    number: int
    extension: str


@dataclass(frozen=True, slots=True)
class CompactedChangelogName:
    """Where the bytes of one bucket's changelog lie in a file shared by many buckets.

    They are ``[offset, offset + length)`` of ``holder_name`` in the directory of
    ``holder_bucket``, in the format ``file_format``.
    """

    holder_bucket: int
    holder_name: str
    offset: int
    length: int
    file_format: str


class FileNames:
    """Fresh names for one writer or one commit: a uuid and a counter that never repeats.

    Safe to share between threads of one process. Pass `uuid` to make the names repeatable.
    """

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid or new_uuid()
        self._numbers = itertools.count()

    def metadata(self, kind: MetadataKind) -> str:
        """The next manifest, manifest list, index manifest, index or statistics name."""
        return metadata_file_name(kind, self.uuid, next(self._numbers))

    def data_file(self, extension: str, prefix: str = DATA_FILE_PREFIX) -> str:
        """The next data file name; `extension` has no leading dot."""
        return data_file_name(self.uuid, next(self._numbers), extension, prefix)

    def changelog_file(self, extension: str, prefix: str = CHANGELOG_FILE_PREFIX) -> str:
        """The next changelog file name; `extension` has no leading dot."""
        return data_file_name(self.uuid, next(self._numbers), extension, prefix)


def new_uuid() -> str:
    """A random uuid in its usual text form."""
    return str(uuids.uuid4())


# Directories and files of a branch, located by name


def branch_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder that holds a branch's metadata: empty text for the main branch."""
    if branch == MAIN_BRANCH:
        return ""
    return join(BRANCH_DIR, f"branch-{_checked_name(branch, 'branch')}")


def schema_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's schemas."""
    return join(branch_dir(branch), "schema")


def snapshot_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's snapshots and their hints."""
    return join(branch_dir(branch), "snapshot")


def changelog_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's long-lived changelogs and their hints."""
    return join(branch_dir(branch), "changelog")


def tag_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's tags."""
    return join(branch_dir(branch), "tag")


def consumer_dir(branch: str = MAIN_BRANCH) -> str:
    """The folder of a branch's consumers."""
    return join(branch_dir(branch), "consumer")


def schema_path(schema_id: int, branch: str = MAIN_BRANCH) -> str:
    """The file of a schema."""
    return join(schema_dir(branch), f"schema-{_checked_id(schema_id)}")


def snapshot_path(snapshot_id: int, branch: str = MAIN_BRANCH) -> str:
    """The file of a snapshot."""
    return join(snapshot_dir(branch), f"snapshot-{_checked_id(snapshot_id)}")


def changelog_path(snapshot_id: int, branch: str = MAIN_BRANCH) -> str:
    """The file that outlives snapshot `snapshot_id` for the readers of its changelog."""
    return join(changelog_dir(branch), f"changelog-{_checked_id(snapshot_id)}")


def tag_path(tag: str, branch: str = MAIN_BRANCH) -> str:
    """The file of a tag. InvalidError when the name cannot be part of a file name."""
    return join(tag_dir(branch), f"tag-{_checked_name(tag, 'tag')}")


def consumer_path(consumer: str, branch: str = MAIN_BRANCH) -> str:
    """The file of a consumer. InvalidError when the name cannot be part of a file name."""
    return join(consumer_dir(branch), f"consumer-{_checked_name(consumer, 'consumer')}")


def snapshot_hint_path(hint: Hint, branch: str = MAIN_BRANCH) -> str:
    """The file of a hint about snapshots."""
    return join(snapshot_dir(branch), hint.value)


def changelog_hint_path(hint: Hint, branch: str = MAIN_BRANCH) -> str:
    """The file of a hint about long-lived changelogs."""
    return join(changelog_dir(branch), hint.value)


def parse_branch_name(name: str) -> str | None:
    """The branch of a folder inside ``branch/``."""
    return _named(name, "branch-")


def parse_schema_name(name: str) -> int | None:
    """The id of a file inside ``schema/``."""
    return _numbered(name, "schema-")


def parse_snapshot_name(name: str) -> int | None:
    """The id of a file inside ``snapshot/``; None for the hints."""
    return _numbered(name, "snapshot-")


def parse_changelog_name(name: str) -> int | None:
    """The id of a file inside ``changelog/``; None for the hints."""
    return _numbered(name, "changelog-")


def parse_tag_name(name: str) -> str | None:
    """The tag of a file inside ``tag/``."""
    return _named(name, "tag-")


def parse_consumer_name(name: str) -> str | None:
    """The consumer of a file inside ``consumer/``."""
    return _named(name, "consumer-")


def is_temporary(name: str) -> bool:
    """Whether a name is a writer's temporary: such files are never read."""
    return name.startswith(".")


def encode_hint(snapshot_id: int) -> bytes:
    """The content of a hint file: the decimal id without a newline."""
    return str(_checked_id(snapshot_id)).encode("ascii")


def decode_hint(data: bytes) -> int | None:
    """The id in a hint file; None for anything else, for a hint is only a hint."""
    match = _HINT.fullmatch(data)
    return int(match.group(1)) if match else None


# Files located by recorded name


def metadata_file_name(kind: MetadataKind, uuid: str, number: int) -> str:
    """The name of a manifest, manifest list, index manifest, index or statistics file."""
    return f"{kind.value}-{uuid}-{_checked_id(number)}"


def parse_metadata_file_name(name: str) -> MetadataFileName | None:
    """The parts of a generated metadata name, in the variants that known writers use."""
    match = _METADATA_NAME.fullmatch(name)
    if match is None:
        return None
    number = match.group("number")
    return MetadataFileName(
        kind=MetadataKind(match.group("kind")),
        uuid=match.group("uuid"),
        number=None if number is None else int(number),
    )


def manifest_path(name: str) -> str:
    """Where a manifest, manifest list or index manifest lies. Branches share the folder."""
    return join(MANIFEST_DIR, name)


def index_path(name: str) -> str:
    """Where an index file lies by default. Branches share the folder."""
    return join(INDEX_DIR, name)


def statistics_path(name: str) -> str:
    """Where a statistics file lies. Branches share the folder."""
    return join(STATISTICS_DIR, name)


def data_file_name(uuid: str, number: int, extension: str, prefix: str = DATA_FILE_PREFIX) -> str:
    """The name of a data or changelog file; readers take its format from `extension`."""
    return f"{prefix}{uuid}-{_checked_id(number)}.{extension}"


def parse_data_file_name(name: str, prefix: str = DATA_FILE_PREFIX) -> DataFileName | None:
    """The parts of a data file name with the given prefix."""
    match = _DATA_NAME.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
    if match is None:
        return None
    return DataFileName(prefix, match.group("uuid"), int(match.group("number")), match.group("ext"))


def postpone_file_name(
    commit_user: str,
    writer_id: int,
    uuid: str,
    number: int,
    extension: str = "avro",
    prefix: str = DATA_FILE_PREFIX,
) -> str:
    """The name of a file in the postpone bucket; one writer's files are replayed by name."""
    writer_prefix = f"{prefix}u-{commit_user}-s-{_checked_id(writer_id)}-w-"
    return data_file_name(uuid, number, extension, writer_prefix)


def parse_postpone_file_name(name: str, prefix: str = DATA_FILE_PREFIX) -> PostponeFileName | None:
    """The parts of a postpone-bucket file name with the given prefix."""
    match = _POSTPONE_NAME.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
    if match is None:
        return None
    return PostponeFileName(
        commit_user=match.group("user"),
        writer_id=int(match.group("writer")),
        uuid=match.group("uuid"),
        number=int(match.group("number")),
        extension=match.group("ext"),
    )


def parse_compacted_changelog_name(name: str) -> CompactedChangelogName | None:
    """Where a changelog that shares its file with other buckets really lies."""
    match = _COMPACTED_CHANGELOG.fullmatch(name)
    if match is None:
        return None
    holder = f"{match.group('stem')}${match.group('bucket')}-{match.group('holder_length')}"
    offset, length = match.group("offset"), match.group("length")
    return CompactedChangelogName(
        holder_bucket=int(match.group("bucket")),
        holder_name=f"{holder}.cc-{match.group('format')}",
        offset=int(offset or 0),
        length=int(length or match.group("holder_length")),
        file_format=match.group("format"),
    )


def data_file_format(name: str) -> str:
    """The format of a data file, which its extension alone decides, for example ``parquet``.

    A compression extension at the very end is passed over. DataError when there is no extension.
    """
    parts = name.rsplit("/", 1)[-1].split(".")
    if len(parts) > 2 and parts[-1] in _COMPRESSION_EXTENSIONS:
        parts.pop()
    if len(parts) < 2 or not parts[-1]:
        raise DataError(f"data file {name!r} has no extension to tell its format, such as .parquet")
    return parts[-1].removeprefix("cc-")


def bucket_dir(partition_path: str, bucket: int, data_dir: str = "") -> str:
    """The folder of a bucket. `data_dir` is the table's ``data-file.path-directory``."""
    return join(data_dir, partition_path, bucket_name(bucket))


def bucket_name(bucket: int) -> str:
    """The name of a bucket's folder."""
    return "bucket-postpone" if bucket == POSTPONE_BUCKET else f"bucket-{_checked_id(bucket)}"


def parse_bucket_name(name: str) -> int | None:
    """The number of a bucket's folder; -2 for the postpone bucket."""
    return POSTPONE_BUCKET if name == "bucket-postpone" else _numbered(name, "bucket-")


def join(*parts: str) -> str:
    """Join path parts with ``/``, leaving out empty ones."""
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


# Ids are canonical decimals of a signed 64-bit number: "01" names another file than "1".
_ID = r"0|[1-9][0-9]{0,18}"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TAIL = rf"(?P<uuid>{_UUID})-(?P<number>{_ID})\.(?P<ext>[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)?)"

_HINT = re.compile(rb"\s*([0-9]{1,18})\s*")
_NUMBER = re.compile(_ID)
# Besides the counted names, pypaimon leaves the number out or marks changelog manifests.
_METADATA_NAME = re.compile(
    rf"(?P<kind>{'|'.join(kind.value for kind in MetadataKind)})-(?P<uuid>{_UUID})"
    rf"(?:-changelog)?(?:-(?P<number>{_ID}))?"
)
_DATA_NAME = re.compile(_TAIL)
_POSTPONE_NAME = re.compile(rf"u-(?P<user>.+)-s-(?P<writer>{_ID})-w-{_TAIL}")
_COMPACTED_CHANGELOG = re.compile(
    rf"(?P<stem>[^$/]+)\$(?P<bucket>{_ID})-(?P<holder_length>{_ID})"
    rf"(?:-(?P<offset>{_ID})-(?P<length>{_ID}))?\.cc-(?P<format>[a-z0-9]+)"
)
_COMPRESSION_EXTENSIONS = frozenset({"bz2", "deflate", "gz", "lz4", "snappy", "zst"})


def _numbered(name: str, prefix: str) -> int | None:
    if not name.startswith(prefix) or _NUMBER.fullmatch(name, len(prefix)) is None:
        return None
    return int(name[len(prefix) :])


def _named(name: str, prefix: str) -> str | None:
    rest = name.removeprefix(prefix)
    return rest if name.startswith(prefix) and _is_name(rest) else None


def _is_name(text: str) -> bool:
    return bool(text.strip()) and "/" not in text and text.isprintable()


def _checked_name(text: str, what: str) -> str:
    if not _is_name(text):
        raise InvalidError(
            f"{what} name {text!r} cannot be a file name: use printable characters without '/'"
        )
    return text


def _checked_id(number: int) -> int:
    if not 0 <= number < 2**63:
        raise InvalidError(
            f"{shown(number)} cannot be part of a file name: expected 0 or more, in 64 bits"
        )
    return number
