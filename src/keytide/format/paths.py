"""Paths of a table: creates and parses every file name, and no other module does.

A table's directory::

    schema/schema-<id>                      snapshot/snapshot-<id>    snapshot/LATEST, EARLIEST
    tag/tag-<name>                          consumer/consumer-<name>
    changelog/changelog-<id>                snapshot/expiring-<uuid>
    branch/branch-<name>/                   with schemas, snapshots, tags and consumers of its own
    manifest/manifest-<uuid>-<n>            manifest/manifest-list-<uuid>-<n>
    manifest/index-manifest-<uuid>-<n>      index/index-<uuid>-<n>
    statistics/stat-<uuid>-<n>
    [<partition>/]bucket-<b>/data-<uuid>-<n>.<format>

Paths are relative to the table and use ``/``. The own files of a branch are relative to its
folder. Schemas, snapshots, tags, consumers and branches are found by name. Everything else is found
by the name recorded in metadata, in which ``<uuid>`` and ``<n>`` only make the name unique.

Functions named ``parse_*`` return ``None`` for any other name, because a directory also contains
hints, temporary files and the files of other writers. They accept exactly the names that the
creating function returns.

>>> snapshot_path(7)
'snapshot/snapshot-7'
>>> parse_snapshot_name("snapshot-7"), parse_snapshot_name("LATEST")
(7, None)

A branch has its own schemas, snapshots, tags, changelogs and consumers, in a folder inside the
table. Data files, manifests and indexes are stored with those of the table, because each of their
names is unique. So a branch is read and written like any table, through a store that finds its
documents in its folder.

>>> split_branch("shop.orders$branch_trial")
('shop.orders', 'trial')
>>> split_branch("shop.orders")
('shop.orders', None)
"""

from __future__ import annotations

import itertools
import re
import uuid as uuids
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from typing import TypeVar

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, replace
from keytide.errors import InvalidError
from keytide.store import ObjectInfo, PassingStore, Store

# -- file names ------------------------------------------------------------------------------------


POSTPONE_BUCKET = -2
"""The bucket of rows from other writers whose real bucket is assigned later."""

DATA_FILE_PREFIX = "data-"

MANIFEST_DIR = "manifest"
INDEX_DIR = "index"
STATISTICS_DIR = "statistics"

MAIN_BRANCH = "main"
"""The branch whose folder is the table itself."""


class Hint(str, Enum):
    """The two hint files for snapshots. The values are their names."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


class MetadataFile(str, Enum):
    """The kinds of generated metadata files. The values are the prefixes of their names."""

    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest-list"
    INDEX_MANIFEST = "index-manifest"
    INDEX = "index"


class FileNames:
    """New names for one writer or one commit: a uuid and a counter that never repeats.

    Safe to share between threads of one process. Pass `uuid` to make the names repeatable.
    """

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid or new_uuid()
        self._numbers = itertools.count()

    def metadata(self, file: MetadataFile) -> str:
        """The next manifest, manifest list, index manifest or index name."""
        return metadata_file_name(file, self.uuid, next(self._numbers))

    def data_file(self, extension: str, prefix: str = DATA_FILE_PREFIX) -> str:
        """The next data file name. `extension` has no leading dot."""
        return data_file_name(self.uuid, next(self._numbers), extension, prefix)


def new_uuid() -> str:
    """A random uuid in its usual form."""
    return str(uuids.uuid4())


# Found by name


def schema_dir() -> str:
    """The folder of the schemas."""
    return "schema"


def dropped_path() -> str:
    """The file that says that the table is being dropped.

    It counts only once the first schema is gone: the table then no longer exists.
    """
    return join(schema_dir(), "DROPPED")


def snapshot_dir() -> str:
    """The folder of the snapshots and their hints."""
    return "snapshot"


def tag_dir() -> str:
    """The folder of the tags."""
    return "tag"


def consumer_dir() -> str:
    """The folder of the consumers."""
    return "consumer"


def changelog_dir() -> str:
    """The folder of changelogs that have outlived their snapshots."""
    return "changelog"


def branches_dir() -> str:
    """The folder of the branches."""
    return "branch"


def branch_dir(branch: str) -> str:
    """The folder of a branch. Raises `InvalidError` when the name cannot be part of a path."""
    return join(branches_dir(), f"branch-{_checked_name(branch, 'branch')}")


def unfinished_path(branch: str) -> str:
    """The file that says that a process creates or deletes a branch. Other engines have none."""
    return join(branch_dir(branch), "UNFINISHED")


def schema_path(schema_id: int) -> str:
    """The file of a schema. Raises `InvalidError` for an invalid id."""
    return join(schema_dir(), f"schema-{_checked_id(schema_id)}")


def snapshot_path(snapshot_id: int) -> str:
    """The file of a snapshot. Raises `InvalidError` for an invalid id."""
    return join(snapshot_dir(), f"snapshot-{_checked_id(snapshot_id)}")


def tag_path(tag: str) -> str:
    """The file of a tag. Raises `InvalidError` if the name cannot be part of a file name."""
    return join(tag_dir(), f"tag-{_checked_name(tag, 'tag')}")


def changelog_path(snapshot_id: int) -> str:
    """The file of a changelog that has outlived its snapshot."""
    return join(changelog_dir(), f"changelog-{_checked_id(snapshot_id)}")


def consumer_path(consumer: str) -> str:
    """The file of a consumer. Raises `InvalidError` if its name cannot be part of a file name."""
    return join(consumer_dir(), f"consumer-{_checked_name(consumer, 'consumer')}")


def snapshot_hint_path(hint: Hint) -> str:
    """The file of a hint for snapshots."""
    return join(snapshot_dir(), hint.value)


def expiring_path(uuid: str) -> str:
    """The file that records what an expiry is about to delete. Other engines have no such file."""
    return join(snapshot_dir(), f"expiring-{_checked_name(uuid, 'expiry')}")


def changelog_hint_path(hint: Hint) -> str:
    """The file of a hint for changelogs that have outlived their snapshots."""
    return join(changelog_dir(), hint.value)


def parse_schema_name(name: str) -> int | None:
    """The id in the name of a file in ``schema/``."""
    return _numbered(name, "schema-")


def parse_snapshot_name(name: str) -> int | None:
    """The id in the name of a file in ``snapshot/``. None for the hints."""
    return _numbered(name, "snapshot-")


def parse_tag_name(name: str) -> str | None:
    """The tag in the name of a file in ``tag/``."""
    return _named(name, "tag-")


def parse_branch_name(name: str) -> str | None:
    """The branch in the name of a folder in ``branch/``."""
    return _named(name, "branch-")


def parse_consumer_name(name: str) -> str | None:
    """The consumer in the name of a file in ``consumer/``."""
    return _named(name, "consumer-")


def parse_changelog_name(name: str) -> int | None:
    """The id in the name of a file in ``changelog/``. None for the hints."""
    return _numbered(name, "changelog-")


def parse_expiring_name(name: str) -> str | None:
    """The uuid of an expiry in the name of its file in ``snapshot/``."""
    return _named(name, "expiring-")


def encode_hint(snapshot_id: int) -> bytes:
    """The content of a hint file: the decimal id without a newline."""
    return str(_checked_id(snapshot_id)).encode("ascii")


def decode_hint(data: bytes) -> int | None:
    """The id in a hint file. None for any other content, because hints are optional."""
    match = _HINT.fullmatch(data)
    return int(match.group(1)) if match else None


# Found by the name that metadata records


def metadata_file_name(file: MetadataFile, uuid: str, number: int) -> str:
    """The name of a manifest, manifest list, index manifest or index file."""
    return f"{file.value}-{uuid}-{_checked_id(number)}"


def uuid_of(name: str) -> str:
    """The uuid in the name of a manifest, manifest list, index manifest or index file."""
    return name.rpartition("-")[0][-36:]


def manifest_path(name: str) -> str:
    """The path of a manifest, manifest list or index manifest."""
    return join(MANIFEST_DIR, name)


def index_path(name: str) -> str:
    """The default path of an index file."""
    return join(INDEX_DIR, name)


def statistics_path(name: str) -> str:
    """The path of the statistics of a table."""
    return join(STATISTICS_DIR, name)


def data_file_name(uuid: str, number: int, extension: str, prefix: str = DATA_FILE_PREFIX) -> str:
    """The name of a data file. Readers determine its format from `extension`."""
    return f"{prefix}{uuid}-{_checked_id(number)}.{extension}"


def bucket_dir(partition_path: str, bucket: int, data_dir: str = "") -> str:
    """The folder of a bucket. `data_dir` is the table's ``data-file.path-directory``."""
    return join(data_dir, partition_path, bucket_name(bucket))


def bucket_name(bucket: int) -> str:
    """The name of a bucket's folder."""
    return "bucket-postpone" if bucket == POSTPONE_BUCKET else f"bucket-{_checked_id(bucket)}"


def is_bucket_name(name: str) -> bool:
    """Whether the name of a folder is that of a bucket."""
    return name == bucket_name(POSTPONE_BUCKET) or _numbered(name, "bucket-") is not None


def is_temporary(name: str) -> bool:
    """Whether a file was being written under another name when its writer died."""
    return name.startswith(".") and name.endswith(".tmp")


def never_changes(path: str) -> bool:
    """Whether the content of a file never changes, and its path is never reused.

    This is true for data files, manifests, manifest lists, indexes and statistics, whose names
    contain a uuid. `path` may be a path in a table, in a warehouse, or a URI.

    >>> never_changes("manifest/manifest-6f0b1c9e-0d5f-4f43-9c55-0b6f4f1a2c3d-0")
    True
    >>> never_changes("tag/tag-6f0b1c9e-0d5f-4f43-9c55-0b6f4f1a2c3d-0")
    False
    """
    folders, _, name = path.rpartition("/")
    folder = folders.rpartition("/")[2]
    return (folder in _UNIQUE or is_bucket_name(folder)) and _UNIQUE_NAME.fullmatch(
        name
    ) is not None


def join(*parts: str) -> str:
    """Join path parts with ``/``, without empty ones."""
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


# Ids are canonical decimals of a signed 64-bit number: "01" names another file than "1".
_ID = r"0|[1-9][0-9]{0,18}"

# One digit less than an id may have, so the number cannot exceed 64 bits.
_HINT = re.compile(rb"\s*([0-9]{1,18})\s*")
_NUMBER = re.compile(_ID)

# A number follows the uuid, then an extension in a data file's name, and that of its index after
# it.
_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_UNIQUE_NAME = re.compile(rf"(?:[^.].*-)?{_UUID}-[0-9]+(?:\..*)?", re.DOTALL)
_UNIQUE = frozenset({MANIFEST_DIR, INDEX_DIR, STATISTICS_DIR})


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


_ENDING = ".index"


def index_name(data_file_name: str) -> str:
    """The name of the index file of a data file, in the same folder."""
    return f"{data_file_name}{_ENDING}"


def index_name_among(extra_files: Sequence[str]) -> str | None:
    """The index file among the extra files of a data file. Other engines number later ones."""
    return next((name for name in reversed(extra_files) if name.endswith(_ENDING)), None)


def later_index_name(data_file_name: str, before: str) -> str:
    """The name of an index file that replaces another one."""
    stem = f"{data_file_name}-"
    number = before.removesuffix(_ENDING).removeprefix(stem)
    return f"{stem}{int(number) + 1 if number.isdecimal() else 1}{_ENDING}"


# -- branches: the folder of a table as a branch sees it -------------------------------------------


T = TypeVar("T")

BRANCH_MARK = "$branch_"
"""The separator between the names of a table and of its branch."""

_OWN = frozenset({schema_dir(), snapshot_dir(), tag_dir(), changelog_dir(), consumer_dir()})


def split_branch(name: str) -> tuple[str, str | None]:
    """The table and the branch in a table name. None if it names no branch."""
    table, mark, branch = name.partition(BRANCH_MARK)
    return (table, branch) if mark else (name, None)


def branched_name(table: str, branch: str) -> str:
    """The name of a branch of a table."""
    return table if branch == MAIN_BRANCH else f"{table}{BRANCH_MARK}{branch}"


def main_store(store: Store) -> Store:
    """The store of the whole table, given a store of the table or of a branch."""
    return store.main if isinstance(store, BranchStore) else store


def branch_of(store: Store) -> str:
    """The branch that a store of a table shows."""
    return store.branch if isinstance(store, BranchStore) else MAIN_BRANCH


@dataclass(frozen=True)
class BranchStore(PassingStore):
    """The store `beneath` of a table, with the documents of a branch instead of its own."""

    branch: str

    @property
    def main(self) -> Store:
        """The store of the table."""
        return self.beneath

    @property
    def uri(self) -> str:
        """That of the table, with the branch as in table names."""
        return branched_name(self.main.uri.rstrip("/"), self.branch)

    @property
    def identity(self) -> Hashable:
        """That of the table, and the branch."""
        return self.main.identity, self.branch

    def uri_of(self, path: str) -> str:
        """The full name of a file."""
        return self.main.uri_of(self._path(path)) if path else f"{self.uri}/"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`, without those of the main branch and of other branches."""
        folder = f"{branch_dir(self.branch)}/"
        for info in self.main.list(self._path(prefix)):
            first = info.path.partition("/")[0]
            if info.path.startswith(folder):
                yield replace(info, path=info.path.removeprefix(folder))
            elif first not in _OWN and first != branches_dir():
                yield info

    def _path(self, path: str) -> str:
        """The path of a file in the table."""
        is_own = path.partition("/")[0] in _OWN
        return join(branch_dir(self.branch), path) if is_own else path
