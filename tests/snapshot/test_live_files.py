"""Live files: those of some buckets are found among columns, without a look at all others."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.manifest import decode_manifest, encode_manifest
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.snapshot.live_files import BucketId, LiveFiles, files_of

NAMES = "abcdefghijkl"
BUCKETS = st.tuples(st.sampled_from([b"p", b"q", b""]), st.integers(-2, 1))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> LiveFiles:
    table = kt.connect(tmp_path_factory.mktemp("lake")).create_table(
        "t", pa.schema([("k", pa.int32())]), ["k"]
    )
    table.write([{"k": 1}])
    return table.stored.newest_files()


@given(
    places=st.lists(BUCKETS, min_size=len(NAMES), max_size=len(NAMES)),
    base=st.sets(st.sampled_from(NAMES)),
    deleted=st.sets(st.sampled_from(NAMES)),
    buckets=st.sets(BUCKETS),
    all_before=st.booleans(),
)
def test_files_of_some_buckets_are_those_of_all_files_that_lie_there(
    first: LiveFiles,
    places: list[BucketId],
    base: set[str],
    deleted: set[str],
    buckets: set[BucketId],
    all_before: bool,
) -> None:
    assert first.snapshot is not None
    entries = [at(name, place, first) for name, place in zip(NAMES, places, strict=True)]
    there = [entry for entry in entries if entry.file.file_name in base]
    live = files_of(first.snapshot, decode_manifest(encode_manifest(there), "m"))
    delta = [replace(e, kind=FileKind.DELETE) for e in there if e.file.file_name in deleted]
    delta += [entry for entry in entries if entry.file.file_name not in base]
    live = live.advance(first.snapshot, delta)
    assert not all_before or live.files is not None
    found = live.files_in(buckets)
    assert list(found) == [e for e in live.files if (e.partition, e.bucket) in buckets]
    wanted = {entry.identity for entry in entries}
    assert live.present(wanted) == {entry.identity for entry in live.files}


def at(name: str, bucket: BucketId, live: LiveFiles) -> ManifestEntry:
    [one] = live.entries
    file = replace(one.file, file_name=name)
    return replace(one, partition=bucket[0], bucket=bucket[1], file=file)
