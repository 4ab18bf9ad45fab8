"""Verifies hash indexes: each key in dynamic buckets is in the bucket whose index has its hash."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from keytide.base.plural import counted
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.bucket import row_hashes
from keytide.format.data_file import FileReader
from keytide.format.index_manifest import HASH, IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.snapshot.live_files import BucketId
from keytide.types import arrow_schema
from keytide.verify.branch import Branch
from keytide.verify.finding import REWRITE, Findings
from keytide.verify.history import Seen

__all__ = ["check_hashes"]

Hashes = npt.NDArray[np.int32]

_WAY_OUT = f"{REWRITE}; this recreates the index"


def check_hashes(
    branch: Branch, seen: Seen, indexes: Iterable[IndexFile], findings: Findings
) -> None:
    """Check the hash indexes of a snapshot against each other and against the keys of its files."""
    by_bucket = {(i.partition, i.bucket): i for i in indexes if i.index_type == HASH}
    known: dict[BucketId, Hashes] = {}
    for bucket, index in by_bucket.items():
        path = paths.index_path(index.file_name)
        with findings.reading(path):
            known[bucket] = np.frombuffer(branch.store.read(path), ">i4").astype(np.int32)
    _check_apart(known, by_bucket, findings)
    for entry in seen.live.values():
        bucket = (entry.partition, entry.bucket)
        if bucket in known:
            _check_file(branch, entry, known[bucket], by_bucket[bucket], findings)


def _check_apart(
    known: dict[BucketId, Hashes], indexes: dict[BucketId, IndexFile], findings: Findings
) -> None:
    """Check that no hash is in two buckets of a partition. Otherwise a key could be too."""
    seen: dict[bytes, Hashes] = {}
    for (partition, bucket), hashes in known.items():
        before = seen.get(partition, np.empty(0, np.int32))
        twice = np.intersect1d(before, hashes)
        if len(twice):
            path = paths.index_path(indexes[(partition, bucket)].file_name)
            findings.add(
                path,
                f"{counted(len(twice), 'hash value')} that are in another bucket too",
                "each hash in one bucket of a partition",
                _WAY_OUT,
            )
        seen[partition] = np.concatenate([before, hashes])


def _check_file(
    branch: Branch, entry: ManifestEntry, hashes: Hashes, index: IndexFile, findings: Findings
) -> None:
    view = branch.view(entry.file.schema_id)
    if view is None:
        return
    key = view.schema.trimmed_primary_key_fields()
    path = view.shown_path(entry)
    with findings.reading(path):
        reader = FileReader(*view.data_file(entry), view.schema, key)
        for span in reader.spans(1 << 18):
            keys = to_arrow(reader.read(*span), arrow_schema(key))
            strange = ~np.isin(row_hashes(keys.columns, [f.type for f in key]), hashes)
            if strange.any():
                findings.add(
                    path,
                    f"{counted(int(strange.sum()), 'row')} with keys that are not in "
                    f"{index.file_name}",
                    "keys whose hashes are in the index of their bucket",
                    _WAY_OUT,
                )
