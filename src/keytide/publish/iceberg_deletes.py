"""The dead rows of a table in the form of Apache Iceberg: one file for each bucket that has some.

The file is rewritten when a row of the bucket dies, like the table's own vectors. So it mentions
only live data files, and each once. Readers may apply all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keytide.base.lazily import cached_property
from keytide.format.deletion_vector import Vector
from keytide.format.iceberg.deletes import DeleteFile, position_deletes, vectors_of_deletes
from keytide.format.iceberg.metadata import METADATA_DIR
from keytide.publish.content import Content
from keytide.publish.vectors import digests_of, stored
from keytide.snapshot.live_files import BucketId

__all__ = ["DeadRows", "digest_in"]

_Encode = Callable[[str, Mapping[str, Vector]], DeleteFile]
_FILES: Mapping[int, tuple[str, _Encode]] = {
    2: ("parquet", position_deletes),
    3: ("puffin", vectors_of_deletes),
}
"""By format version: the file name extension, and the function that creates the files."""


@dataclass(frozen=True)
class DeadRows:
    """The dead rows of the content to publish, of a table at `location`."""

    content: Content
    location: str
    format_version: int

    @cached_property
    def by_digest(self) -> Mapping[str, Sequence[str]]:
        """The files with dead rows of each bucket, by a digest of the bucket's dead rows."""
        if not self.content.dead:
            return {}
        digests = digests_of(self.content)
        buckets: dict[BucketId, list[str]] = {}
        for name, entry in self.content.files.items():
            if name in digests:
                buckets.setdefault((entry.partition, entry.bucket), []).append(name)
        return {self._digest(names, digests): names for names in buckets.values()}

    def files(self, digests: Collection[str], uuid: str) -> dict[str, DeleteFile]:
        """The delete files for these digests, by their paths in the table.

        The uuid makes the paths unique.
        """
        if not digests:
            return {}
        ending, encode = _FILES[self.format_version]
        names = {digest: self.by_digest[digest] for digest in digests}
        vectors = stored(self.content, [name for each in names.values() for name in each])
        made = {}
        for digest, of in names.items():
            path = f"{METADATA_DIR}/deletes-{digest}-{uuid}.{ending}"
            by_uri = {self._uri(self.content.path(name)): vectors[name] for name in of}
            made[path] = encode(self._uri(path), by_uri)
        return made

    def _digest(self, names: Iterable[str], digests: Mapping[str, str]) -> str:
        marks = sorted((name, digests[name]) for name in names)
        told = [self.format_version, self.location, *marks]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=12).hexdigest()

    def _uri(self, path: str) -> str:
        return f"{self.location}/{path}"


def digest_in(path: str) -> str:
    """The digest of a bucket's dead rows, from the name of a delete file."""
    return path.rpartition("/")[2].removeprefix("deletes-").partition("-")[0]
